"""What Celery's messages say: read and written, in every version and serializer.  Pure."""
