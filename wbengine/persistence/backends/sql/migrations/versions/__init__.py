"""The revisions, oldest first. A released revision never changes."""
