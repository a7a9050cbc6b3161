"""Slow tests: the share of them that each commit runs."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Generator, Sequence

import pytest

from tests.support import tally

#: Each commit runs one of this many shares.
SHARES = 20
#: No test of a share starts in a process of the tests that has spent this time on the share.
SECONDS_IN_PROCESS = 20.0


def share(name: str) -> int:
    """Return the number of the share of a test or of a commit."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % SHARES


def selected(names: Sequence[str], commit: str) -> list[str]:
    """Return the names of the share of this commit."""
    chosen = share(commit)
    return [name for name in names if share(name) == chosen]


class Share:
    """Plug-in that leaves out the slow tests, except the share of a commit.

    Tests with `slow(long=True)` belong to no share.
    """

    def __init__(self, commit: str) -> None:
        self._commit = commit
        self._left = SECONDS_IN_PROCESS

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        slow = [item for item in items if item.get_closest_marker("slow")]
        names = [item.nodeid for item in slow if not _is_long(item)]
        chosen = set(selected(names, self._commit))
        left_out = [item for item in slow if item.nodeid not in chosen]
        config.hook.pytest_deselected(items=left_out)
        names_left_out = {item.nodeid for item in left_out}
        items[:] = [item for item in items if item.nodeid not in names_left_out]

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Generator[None, object, object]:
        if not item.get_closest_marker("slow"):
            return (yield)
        if self._left < 0:
            item.add_marker(pytest.mark.skip("enough slow tests; tools/test --all runs this test"))
        tally.shared.add(item.nodeid)
        started = time.monotonic()
        try:
            return (yield)
        finally:
            self._left -= time.monotonic() - started


def _is_long(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("long") for mark in item.iter_markers("slow"))
