"""Clients of a broker: views of workers, queues and rows of ledgers, and commands to them.

Times are Unix time and durations are seconds; `to_dict()` returns times in ISO 8601 (UTC).
"""
