"""Parts that all clients of Redis share."""
