"""How the members of a flow depend on each other."""
