"""Views of flows: frozen values in which all secrets are masked.

They are read through `persistence.Connection`; nothing is written to a store. Times are Unix time
and durations are seconds; `to_dict()` returns times in ISO 8601 (UTC).
"""
