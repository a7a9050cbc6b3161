"""Many workers and engines at once: discovery, costs, and remaining objects."""
