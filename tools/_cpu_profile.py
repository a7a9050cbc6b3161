"""pytest plug-in: the CPU time of each test, including the processes that it starts.

`tools/test --profile FILE` runs all tests with this plug-in. FILE is then a JSON object with the
CPU seconds of each test in its own process (`own`) and in children (`children`), and its elapsed
seconds (`elapsed`). Children count when they have ended and a process of the tests has waited for
them, so servers that serve a whole run are missing.
"""

from __future__ import annotations

import json
import resource
import time
from collections import defaultdict
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.support import python

KEY = "cpu"
#: Number of test files that the summary lists.
LISTED_FILES = 25


def _seconds(who: int) -> float:
    usage = resource.getrusage(who)
    return usage.ru_utime + usage.ru_stime


def _times() -> tuple[float, float, float]:
    children = _seconds(resource.RUSAGE_CHILDREN) + python.usage.seconds
    return _seconds(resource.RUSAGE_SELF), children, time.monotonic()


class Meter:
    """Measures the tests of one process. A report carries the result to the first process."""

    def __init__(self) -> None:
        self._last = _times()

    def pytest_collection_finish(self) -> None:
        self._last = _times()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, object, object]:
        report = yield
        assert isinstance(report, pytest.TestReport)
        if report.when == "teardown":
            now = _times()
            pairs = zip(now, self._last, strict=True)
            spent = [round(after - before, 4) for after, before in pairs]
            self._last = now
            report.user_properties.append((KEY, spent))
        return report


class Table:
    """Collects the results of all processes, and writes them when the run ends."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._tests: dict[str, tuple[float, float, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        for name, value in report.user_properties:
            if name == KEY and report.when == "teardown":
                assert isinstance(value, list)
                self._tests[report.nodeid] = (value[0], value[1], value[2])

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        content = {
            test: {"own": own, "children": children, "elapsed": elapsed}
            for test, (own, children, elapsed) in sorted(self._tests.items())
        }
        self._path.write_text(json.dumps(content, indent=0), encoding="utf-8")
        terminalreporter.section("CPU time")
        for line in self._lines():
            terminalreporter.write_line(line)

    def _lines(self) -> list[str]:
        costs = sorted((own + children for own, children, _ in self._tests.values()), reverse=True)
        total = sum(costs) or 1.0
        children = sum(times[1] for times in self._tests.values())
        tenth = sum(costs[: len(costs) // 10])
        minutes = f"{total / 60:.1f} minutes, {children / total:.0%} in children"
        lines = [f"{len(costs):,} tests, {minutes}, {tenth / total:.0%} in the costliest tenth"]
        for title, depth, count in (("folder", 2, 99), ("file", 99, LISTED_FILES)):
            groups: dict[str, list[tuple[float, float]]] = defaultdict(list)
            for test, (own, forked, elapsed) in self._tests.items():
                file = test.partition("::")[0]
                groups["/".join(file.split("/")[:depth])].append((own + forked, elapsed))
            lines.append(f"seconds  share  elapsed  tests  {title}")
            sums = [
                (sum(cpu for cpu, _ in times), sum(wall for _, wall in times), len(times), name)
                for name, times in groups.items()
            ]
            for cpu, elapsed, tests, name in sorted(sums, reverse=True)[:count]:
                lines.append(f"{cpu:7.1f} {cpu / total:6.1%} {elapsed:8.1f} {tests:6}  {name}")
        return lines


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--cpu-profile", metavar="FILE", type=Path, help="write the CPU time of tests")


def pytest_configure(config: pytest.Config) -> None:
    path = config.getoption("--cpu-profile")
    if path is None:
        return
    config.pluginmanager.register(Meter())
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(Table(path.absolute()))
