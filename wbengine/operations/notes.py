"""What operations write into the meta of flows and books, for other operations."""

from __future__ import annotations

from wbengine.persistence.notes import ENGINE, MADE_BY

__all__ = ["ENGINE", "MADE_BY"]
