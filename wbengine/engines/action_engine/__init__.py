"""TaskFlow's package of engine classes."""
