"""Many workers and many engines at once: who knows whom, what it costs, and what is left."""
