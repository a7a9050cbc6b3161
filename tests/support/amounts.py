"""Number of random examples that tests try: a few by default, many with `tools/test --all`."""

from __future__ import annotations

import os


def amount(usual: int, thorough: int, variable: str = "") -> int:
    """Return `usual`, `thorough` if `WBENGINE_THOROUGH` is set, or the value of `variable`.

    On an idle machine, `thorough` examples must take less than a quarter of the time limit of a
    test, as several tests share each core. A test that exceeds the limit seems to be flaky.
    """
    given = os.environ.get(variable) if variable else None
    if given:
        return int(given)
    return thorough if os.environ.get("WBENGINE_THOROUGH") else usual
