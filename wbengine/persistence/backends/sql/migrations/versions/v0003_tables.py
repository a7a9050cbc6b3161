"""The tables, which `layout` makes: as they are now, for later revisions leave those alone."""

from __future__ import annotations

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Nothing: a database has this revision, or none."""
