"""The tests that each commit runs, and the parts and the order in which all tests run."""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import time
from collections import defaultdict
from collections.abc import Generator, Sequence
from typing import Any

import pytest

from tests.support import changes, tally

#: Each commit runs one of this many shares of the slow tests.
SHARES = 20
#: Folders with tests that start stores, brokers, sites or processes.
SAMPLED = tuple(
    f"tests/{folder}/"
    for folder in (
        "acceptance", "benchmarks", "browser", "celery", "cli", "client", "contract", "dashboard",
        "integration", "integrations", "interop", "report", "telemetry", "terminal", "testing",
    )
)  # fmt: skip
#: Each commit runs one of this many samples of these tests.
SAMPLES = 12
#: Of a test with at least this many cases, each sample contains one.
MANY_CASES = 3
#: Tests with at least this limit in seconds are the longest ones.
LONGEST = 1200
#: No test of a share starts in a process of the tests that has spent this time on the share.
SECONDS_IN_PROCESS = 10.0


def share(name: str, shares: int = SHARES) -> int:
    """Return the number of the share of a test or of a commit."""
    return int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]) % shares


def selected(names: Sequence[str], commit: str) -> list[str]:
    """Return the names of the share of this commit."""
    chosen = share(commit)
    return [name for name in names if share(name) == chosen]


def mixed(names: Sequence[str], commit: str) -> list[str]:
    """Return the names in an order that depends on the commit."""
    return sorted(names, key=lambda name: share(f"{commit} {name}", 1 << 32))


def sampled(names: Sequence[str], commit: str) -> set[str]:
    """Return the names of the sample of this commit."""
    cases: dict[str, list[str]] = defaultdict(list)
    for name in names:
        cases[name.partition("[")[0]].append(name)
    chosen = share(commit, SAMPLES)
    sample = {name for name in names if share(name, SAMPLES) == chosen}
    for group in cases.values():
        if len(group) >= MANY_CASES and sample.isdisjoint(group):
            sample.add(group[share(commit, len(group))])
    return sample


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
        longest = [item for item in items if _limit(item) >= LONGEST]
        names = part(
            [item.nodeid for item in items],
            [item.nodeid for item in longest],
            self._number,
            self._parts,
        )
        chosen, longest = [
            [item for item in group if item.nodeid in names] for group in (items, longest)
        ]
        items[:] = longest_first(chosen, longest, _processes())


def _processes() -> int:
    """Return the number of parallel processes of this run."""
    return int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))


def _limit(item: pytest.Item) -> float:
    mark = item.get_closest_marker("timeout")
    return float(mark.args[0]) if mark is not None and mark.args else 0.0


class Share:
    """Plug-in that selects the tests of a commit.

    These are its share of the slow tests, as far as the time suffices, its sample, tests that were
    added recently, and all tests of other folders than `SAMPLED`. Tests with `slow(long=True)`
    belong to no share.
    """

    def __init__(self, commit: str) -> None:
        self._commit = commit
        self._left = SECONDS_IN_PROCESS

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(
        self, config: pytest.Config, items: list[pytest.Item]
    ) -> None:
        slow = {item.nodeid: item for item in items if item.get_closest_marker("slow")}
        shared = [name for name, item in slow.items() if not _is_long(item)]
        cases = [
            item.nodeid
            for item in items
            if item.nodeid.startswith(SAMPLED) and item.nodeid not in slow and not _is_fixed(item)
        ]
        chosen = selected(shared, self._commit)
        left_out = slow.keys() - set(chosen)
        left_out |= set(cases) - sampled(cases, self._commit)
        tally.waiting |= left_out
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        # The time is too short for the whole share: other commits begin with other tests of it.
        items[:] = longest_first(
            [item for item in items if item.nodeid not in left_out],
            [slow[name] for name in mixed(chosen, self._commit)],
            _processes(),
        )

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


def _is_fixed(item: pytest.Item) -> bool:
    """Return whether each commit runs this test."""
    added = item.name.partition("[")[0] in changes.added_tests()
    return added or item.get_closest_marker("every_commit") is not None


def _is_long(item: pytest.Item) -> bool:
    return any(mark.kwargs.get("long") for mark in item.iter_markers("slow"))
