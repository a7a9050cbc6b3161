"""What engines and operations write into the meta of flows and books, for whoever finds them."""

from __future__ import annotations

from typing import Final

__all__ = ["ENGINE", "FACTORY", "MADE_BY"]

#: Of a flow: what makes it.
FACTORY: Final = "factory"

#: Of a flow: the kind of engine that it was first loaded into, without options.
ENGINE: Final = "engine"

#: Of a log book: that it was made for one flow.
MADE_BY: Final = "made_by"
