"""A folder as a broker, with the ledger of its requests."""
