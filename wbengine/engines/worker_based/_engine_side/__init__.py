"""Parts of an executor: ledger operations, ownership checks, earlier runs."""
