"""How many random examples tests try: some always, and many in `tools/test --all`."""

from __future__ import annotations

import os


def amount(usual: int, thorough: int, variable: str = "") -> int:
    """As many as are tried usually, or with `WBENGINE_THOROUGH`; or as `variable` says."""
    given = os.environ.get(variable) if variable else None
    if given:
        return int(given)
    return thorough if os.environ.get("WBENGINE_THOROUGH") else usual
