"""Trees of JSON for typed values, and the tags of which they consist."""
