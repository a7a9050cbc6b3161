"""Histories of operations on rows of requests, from processes that are killed, and their check."""
