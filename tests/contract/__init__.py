"""Contract tests: one suite for each interface, run on every implementation."""
