"""`crash_everywhere` with the options of a run of pytest."""

from __future__ import annotations

import functools
import hashlib
import itertools
import math
import os
import re
import shlex
import traceback
from collections.abc import Iterator
from typing import Any, Final

import pytest

from wbengine.testing._crashing.exploring import crash_everywhere
from wbengine.testing._crashing.report import Report

__all__ = ["configured", "texts"]

#: Maximum length of the readable part of the name of a page.
_MAX_NAME: Final = 120


class _Crash:
    """`crash_everywhere` for one test."""

    def __init__(self, item: pytest.Item) -> None:
        config = item.config
        # The id of an item can end with the name of its group, if pytest-xdist runs it.
        classes = [] if item.parent is None else item.parent.nodeid.split("::")[1:]
        path = os.path.relpath(item.path, config.invocation_params.dir)
        self._test = "::".join([path, *classes, item.name])
        self._command = f"pytest {shlex.quote(self._test)} --crash-only"
        self._budget = _budget(item)
        self._only: str | None = config.getoption("crash_only")
        self._real_runs: int | None = config.getoption("crash_real_runs")
        folder = config.getoption("crash_html")
        self._folder = None if folder is None else config.invocation_params.dir / folder
        self._numbers = itertools.count(1)

    def __call__(self, *args: Any, **options: Any) -> Report:
        if self._budget is not None:
            options.setdefault("budget", self._budget)
        if self._real_runs is not None:
            options.setdefault("real_runs", self._real_runs)
        if self._only is not None:
            options["only"] = self._only
        report = crash_everywhere(*args, **options)
        report.command = self._command
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = _page_name(self._test, next(self._numbers))
            report.save_html(self._folder / name, title=self._test)
        return report


def configured(item: pytest.Item) -> _Crash:
    """Return `crash_everywhere` for one test."""
    crash = _Crash(item)
    functools.update_wrapper(crash, crash_everywhere)
    return crash


def _page_name(test: str, number: int) -> str:
    """Return a file name for the report of the n-th call in a test. Tests have different names."""
    readable = re.sub(r"[^\w.]+", "-", test, flags=re.ASCII).strip("-")[-_MAX_NAME:]
    digest = hashlib.sha256(test.encode()).hexdigest()[:8]
    return f"{readable}-{digest}-{number}.html"


def texts(error: BaseException) -> Iterator[str]:
    """Yield the texts of reports with findings in the function that raised an error.

    pytest shows only the beginning of `report` in `assert report.ok, report`.
    """
    *_, (frame, _) = traceback.walk_tb(error.__traceback__)
    for value in frame.f_locals.values():
        if isinstance(value, Report) and not value.ok:
            yield str(value)


def _budget(item: pytest.Item) -> float | None:
    """Return the budget of a test.

    :raises pytest.UsageError: if it is not a positive number.
    """
    marker = item.get_closest_marker("crash_budget")
    if marker is None:
        name, value = "--crash-budget", item.config.getoption("crash_budget")
        if value is None:
            return None
    else:
        name = "The marker crash_budget"
        value = marker.args[0] if len(marker.args) == 1 and not marker.kwargs else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0 < value < math.inf:
        raise pytest.UsageError(f"{name} must have a positive number of seconds, got {value!r}")
    return float(value)
