"""Keys that sign messages and records, and the masking of secrets."""
