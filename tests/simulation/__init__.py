"""The wire without wires: real books, finders and servers in a world that is all simulated."""
