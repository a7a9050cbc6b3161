"""The revisions, the oldest first.  One that was released is never changed."""
