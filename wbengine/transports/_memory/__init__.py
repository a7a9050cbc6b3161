"""The memory of a process as a broker, with the ledger of its requests."""
