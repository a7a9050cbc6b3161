"""The tables in their current form, which `layout` creates; later revisions skip them."""

from __future__ import annotations

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database has this revision or none."""
