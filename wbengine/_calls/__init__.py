"""One call of a task: its request, result and start times."""
