"""Metrics, traces and probes of flows, tasks and workers.

Nothing is imported or counted unless it is requested.
"""
