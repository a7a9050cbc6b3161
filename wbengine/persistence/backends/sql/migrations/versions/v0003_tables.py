"""The first revision. `layout` creates its tables in their current form; later ones skip them."""

from __future__ import annotations

revision = "0003"
down_revision = None


def upgrade() -> None:
    """Do nothing: a database has tables of this revision, or no tables."""
