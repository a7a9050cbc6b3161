"""Slow tests: the share of them that each commit runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Sequence

import pytest

#: Each commit runs one of this many shares.
SHARES = 20
#: No test of a share starts later, so that a share takes about a minute.
LAST_START_SECONDS = 40.0


def share(name: str) -> int:
    """Return the number of the share of a test or of a commit."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % SHARES


def selected(names: Sequence[str], commit: str) -> list[str]:
    """Return the names of the share of this commit."""
    chosen = share(commit)
    return [name for name in names if share(name) == chosen]


class Share:
    """Plug-in that runs only the share of a commit, for about a minute.

    Tests with `slow(long=True)` take longer, and belong to no share.
    """

    def __init__(self, commit: str) -> None:
        self._commit = commit
        self._end = time.monotonic() + LAST_START_SECONDS

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        names = [item.nodeid for item in items if not _is_long(item)]
        chosen = set(selected(names, self._commit))
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in chosen])
        items[:] = [item for item in items if item.nodeid in chosen]

    def pytest_collection_finish(self) -> None:
        self._end = time.monotonic() + LAST_START_SECONDS

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self) -> None:
        if time.monotonic() > self._end:
            pytest.skip("the minute of slow tests is over; tools/test --all runs this test")


def _is_long(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("long") for mark in item.iter_markers("slow"))
