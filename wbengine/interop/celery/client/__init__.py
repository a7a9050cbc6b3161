"""Flows that use Celery's workers."""
