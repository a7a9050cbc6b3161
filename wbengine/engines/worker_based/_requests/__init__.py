"""Requests of an executor: state, timers, results and recovery."""
