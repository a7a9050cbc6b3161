"""Names and signatures of Python objects."""
