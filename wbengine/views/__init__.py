"""Views of flows, workers and queues: frozen values in which all secrets are masked.

Views of flows are read through `persistence.Connection`; nothing is written to a store. `fleet`,
`queues` and `ledgers` communicate with the broker and the workers, and can send commands. Times are
Unix seconds and durations are seconds; `to_dict()` returns times in ISO 8601 (UTC).
"""
