"""Workflows of a run: their functions, and the steps that these call."""
