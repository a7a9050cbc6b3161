"""Workers of ours that serve Celery's clients."""
