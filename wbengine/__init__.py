"""Flows of tasks, compiled into dependency graphs, run here or on fleets of workers."""

import logging as _logging

__version__ = "0.1.0"

# What is logged is for whoever configures logging; without anybody, for nobody.
_logging.getLogger(__name__).addHandler(_logging.NullHandler())
