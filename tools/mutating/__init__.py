"""What `tools/mutate` plants, how it tries it, and how it tells; the command itself is thin."""
