"""The revisions, oldest first. A released revision never changes.

A revision should only add tables, indexes that are not unique, and columns that are nullable or
have a server default. Then its `oldest` in `schema_revisions.REVISIONS` is that of the previous
revision, and engines of the previous release continue. Otherwise, `oldest` is the earliest revision
whose releases can read and write the new tables, usually the new revision itself.

A revision also changes `tables` and `schema_revisions.REVISIONS`: new databases are created from
these.
"""
