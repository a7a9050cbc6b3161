"""Parts of an executor: its tracker with a lock, operations on rows, and pings."""
