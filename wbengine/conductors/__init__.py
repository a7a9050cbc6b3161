"""Conductors: they claim jobs from a board, and run the flows of these."""
