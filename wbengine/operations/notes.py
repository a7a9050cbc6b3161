"""What operations write into the meta of flows and books, for other operations."""

from __future__ import annotations

from typing import Final

__all__ = ["ENGINE", "MADE_BY"]

#: Of a flow: by which kind of engine it was last run.
ENGINE: Final = "engine"

#: Of a log book: that it was made for one flow.
MADE_BY: Final = "made_by"
