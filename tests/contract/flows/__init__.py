"""The same flows on every kind of engine: the same trace of states, the same results."""
