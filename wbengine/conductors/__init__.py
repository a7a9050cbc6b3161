"""Conductors: they claim jobs from a board and run their flows."""
