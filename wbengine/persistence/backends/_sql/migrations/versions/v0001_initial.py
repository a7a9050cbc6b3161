"""The initial revision, which changes nothing: `schema_revisions` creates new databases."""

from __future__ import annotations

revision = "0001"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database has tables of this revision, or no tables."""
