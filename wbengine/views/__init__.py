"""Views of flows, workers and queues: frozen values in which all secrets are masked.

Views of flows are read through `persistence.Connection`; nothing is written to a store. `fleet` and
`queues` communicate with the broker and the workers, and can send commands; `ledgers` reads a
ledger. Times are Unix time and durations are seconds; `to_dict()` returns times in ISO 8601 (UTC).
"""
