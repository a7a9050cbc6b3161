"""Limits of tasks and flows (`rate_limit`, `concurrency`), shared by all engines of a store.

A permit is the right to run one task under a limit.
"""
