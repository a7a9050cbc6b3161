"""What holds for all that is counted."""

from __future__ import annotations

import math

import pytest

from wbengine.runtime import saving


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """No turn is saved before its end for the time that it takes: that is the host's."""
    monkeypatch.setattr(saving, "FLUSH_INTERVAL", math.inf)
    for level in saving.LEVELS:
        monkeypatch.setitem(saving._FLUSH_INTERVALS, level, math.inf)  # type: ignore[arg-type]
