"""The revisions, oldest first. A released revision never changes.

A revision should only add tables, indexes, and columns that are nullable or have a default. Then
its `oldest` in `layout.REVISIONS` is that of the previous revision, and engines of the previous
release continue. Otherwise, `oldest` is the first revision whose releases can use the new tables.
"""
