"""Flows whose processes are killed: the tasks, the processes, the kills, and the checks.

The process that forks runs no threads: engines and workers run in child processes.
"""
