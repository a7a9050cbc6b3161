"""Parts of a worker: its requests, heartbeats, task pool and logs."""
