"""Fixtures of all counts."""

from __future__ import annotations

import math

import pytest

from wbengine import running
from wbengine._runtime import saving


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save batches only at their ends, so that counts do not depend on the speed of the host."""
    for level in saving.LEVELS:
        monkeypatch.setitem(saving._FLUSH_SECONDS, level, math.inf)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _untraced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the hooks of tracers, which a process keeps after its first traced flow."""
    for hook in ("around", "sending", "header_hook"):
        monkeypatch.setattr(running, hook, None)
