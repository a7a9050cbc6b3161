"""Flows of tasks, compiled into dependency graphs, run here or on fleets of workers."""

__version__ = "0.1.0"
