"""Slow tests: the share that each commit runs, and the parts and the order in which all run."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from tests.support import tally

#: Each commit runs one of this many shares.
SHARES = 20
#: Tests with at least this limit in seconds are the longest ones.
LONGEST = 1200
#: No test of a share starts in a process of the tests that has spent this time on the share.
SECONDS_IN_PROCESS = 20.0


def share(name: str, shares: int = SHARES) -> int:
    """Return the number of the share of a test or of a commit."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % shares


def selected(names: Sequence[str], commit: str) -> list[str]:
    """Return the names of the share of this commit."""
    chosen = share(commit)
    return [name for name in names if share(name) == chosen]


def longest_first(items: Sequence[Any], longest: Sequence[Any], processes: int) -> list[Any]:
    """Return the tests in an order in which each process begins with some of the longest ones.

    Each process gets a part of the tests, and takes tests of others only after its part. One that
    begins with several of the longest tests would still run them when all others have ended.
    """
    apart = set(longest)
    others = [item for item in items if item not in apart]
    size = -(-len(others) // processes)
    parts = [
        [*longest[number::processes], *others[number * size : (number + 1) * size]]
        for number in range(processes)
    ]
    return [item for part in parts for item in part]


def part(names: Sequence[str], longest: Sequence[str], number: int, parts: int) -> set[str]:
    """Return the names of the part with this number, from 1. All parts take about equally long.

    The longest tests are distributed by their position, the others by their name.
    """
    chosen = {name for name in names if share(name, parts) == number - 1}
    return chosen - set(longest) | set(longest[number - 1 :: parts])


def parse_part(text: str) -> tuple[int, int]:
    """Return the numbers of a text such as '1/3'."""
    found = re.fullmatch(r"([1-9]\d*)/([1-9]\d*)", text)
    if found is None or int(found[1]) > int(found[2]):
        raise argparse.ArgumentTypeError(f"a part is a text such as '1/3', not {text!r}")
    return int(found[1]), int(found[2])


class All:
    """Plug-in that runs all tests, or a part, and lets each process begin with the longest ones.

    :param chosen: number of the part, from 1, and number of parts.
    """

    def __init__(self, chosen: tuple[int, int]) -> None:
        self._number, self._parts = chosen

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        longest = [item.nodeid for item in items if _limit(item) >= LONGEST]
        names = part([item.nodeid for item in items], longest, self._number, self._parts)
        items[:] = [item for item in items if item.nodeid in names]
        longest_items = [item for item in items if _limit(item) >= LONGEST]
        processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
        items[:] = longest_first(items, longest_items, processes)


def _limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


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
