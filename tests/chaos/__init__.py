"""Faults of all kinds against real processes and real brokers, and the judge of what comes of it.

Nothing here runs threads in the process that forks: engines, workers and proxies live in children.
"""
