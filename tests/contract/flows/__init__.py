"""Flows that run on every kind of engine, with the expected trace and results."""
