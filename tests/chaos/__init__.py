"""Faults of all kinds in real processes and brokers, and the check of their effects.

The process that forks runs no threads: engines, workers and proxies run in child processes.
"""
