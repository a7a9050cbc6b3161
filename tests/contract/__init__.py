"""One suite for each kind of plug, run over every implementation of it."""
