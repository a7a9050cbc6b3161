"""Execution of calls: pools, child processes, an event loop, time limits, cancellation.

This package is independent of tasks and flows: a call is a function, its arguments, and a receiver
of its value.
"""
