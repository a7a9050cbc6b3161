"""Flow patterns, which define how the members of a flow depend on each other."""
