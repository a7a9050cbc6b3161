"""The engine that runs tasks on remote workers."""
