"""Fixtures of places for payloads."""

from tests.support.buckets import bucket, location, s3_server

__all__ = ["bucket", "location", "s3_server"]
