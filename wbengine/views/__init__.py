"""What people look at: records in, plain frozen values out, every secret masked.

Nothing here writes to a store.  Flows are read through `persistence.Connection` only; workers and
queues (`fleet`, `queues`, `ledgers`) where the fleet is, which can be told what to do.  All times
are unix seconds and durations seconds; `to_dict()` has times in ISO 8601, UTC.
"""
