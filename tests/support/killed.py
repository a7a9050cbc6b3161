"""Calls in a forked process that is killed at a crash point."""

from __future__ import annotations

import itertools
import multiprocessing
import os
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from wbengine._concurrency import crash_points

_KILLED = 9


def _killed_at(number: int, work: Callable[..., object], arguments: tuple[Any, ...]) -> None:
    points = itertools.count(1)
    crash_points.install(lambda _: os._exit(_KILLED) if next(points) == number else None)
    work(*arguments)
    os._exit(0)


def is_killed(number: int, work: Callable[..., object], *arguments: Any) -> bool:
    """Run `work` in another process and kill it at a crash point. Return False without a kill."""
    process = multiprocessing.get_context("fork").Process(
        target=_killed_at, args=(number, work, arguments)
    )
    process.start()
    process.join(60)
    assert process.exitcode in (0, _KILLED)
    return process.exitcode == _KILLED


def points(numbers: Sequence[int]) -> list[Any]:
    """Return crash points as parameters of a test. Only every third is not slow."""
    marks = pytest.mark.slow
    return [
        pytest.param(number, marks=marks if place % 3 else ())
        for place, number in enumerate(numbers)
    ]
