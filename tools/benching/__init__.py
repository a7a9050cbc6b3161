"""What `tools/bench` measures, how it judges, and how it tells; the command itself is thin."""
