"""What people look at: records in, plain frozen values out, every secret masked.

Nothing here writes.  Flows are read through `persistence.Connection` only; workers and queues
(`fleet`, `queues`, `ledgers`) where the fleet is.  All times are unix seconds and durations
seconds; `to_dict()` tells times in ISO 8601, UTC.
"""
