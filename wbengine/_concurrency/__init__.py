"""Execution of calls: pools, child processes, an event loop, time limits, cancellation.

This package is independent of tasks and flows. A call is a function, its arguments, and a callback
that receives the result.
"""
