"""The kinds that flows run on, and how many flows ran on how many of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.contract.flows import kinds, tasks

#: (flow, kind) of all runs that went as expected.
PASSED: set[tuple[str, str]] = set()


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], kinds.Kind]]:
    """Makes each kind when it is first asked for, once for a module."""
    with contextlib.ExitStack() as stack:

        @functools.cache
        def start(name: str) -> kinds.Kind:
            folder = tmp_path_factory.mktemp(name)
            return stack.enter_context(kinds.kind(name, folder, tasks.__name__))

        yield start


@pytest.fixture
def kind(request: pytest.FixtureRequest, started: Callable[[str], kinds.Kind]) -> kinds.Kind:
    return started(request.param)


def pytest_terminal_summary(terminalreporter: Any) -> None:
    if PASSED:
        flows = {name for name, _ in PASSED}
        used = {kind for _, kind in PASSED}
        terminalreporter.write_line(
            f"contract of flows: {len(flows)} flows x {len(used)} kinds"
            f" ({', '.join(name for name in (*kinds.NAMES, kinds.KEPT) if name in used)}),"
            f" {len(PASSED)} runs as expected"
        )
