"""Fixtures of all counts."""

from __future__ import annotations

import math

import pytest

from wbengine import running
from wbengine._runtime import saving
from wbengine.types import _references


@pytest.fixture(autouse=True)
def _unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Save batches only at their ends, so that counts do not depend on the speed of the host."""
    for level in saving.LEVELS:
        monkeypatch.setitem(saving._FLUSH_SECONDS, level, math.inf)  # type: ignore[arg-type]


@pytest.fixture(autouse=True)
def _unhooked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Remove the hooks of tracers and Django, which a process keeps after their set-up."""
    for hook in ("around", "sending", "header_hook", "scope", "async_scope"):
        monkeypatch.setattr(running, hook, None)


@pytest.fixture(autouse=True)
def _without_references(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget earlier references to large values, after which a process checks all values."""
    monkeypatch.setattr(_references, "IN_USE", set())
