"""What holds for all tests."""

from __future__ import annotations

import gc
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import tally
from tests.support.amounts import amount
from tests.support.brokers import (  # noqa: F401  (fixtures)
    broker_servers,
    rabbitmq_server,
    rabbitmq_url,
    redis_server,
    redis_url,
)
from tests.support.browsers import browser  # noqa: F401  (a fixture)
from tests.support.installed import installed  # noqa: F401  (a fixture)
from tests.support.servers import (  # noqa: F401  (fixtures)
    database_servers,
    mariadb_server,
    mariadb_url,
    postgresql_server,
    postgresql_url,
    shared_folder,
)

# Here, because tests of other folders import them too.
pytest.register_assert_rewrite("tests.contract.flows.case", "tests.contract.flows.trace")

# Speed is not what properties are about; the machine may be busy.
_ALL: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "max_examples": amount(60, 400),
}
settings.register_profile("local", **_ALL)
# A change must not fail because of luck; new examples are found on people's machines.
settings.register_profile("ci", **_ALL, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell that runs a script's command in the background has it ignore Ctrl-C, and with it all that
# the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True)
def ctrl_c_is_left_alone() -> Iterator[None]:
    """A test that leaves a handler of its own would end the whole run, without a word, when a later
    one interrupts itself."""
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """What is collected, modules and thousands of tests, stays to the end: the garbage collector
    does not look at it while it grows, nor in any of the tests."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            tally.waiting.add(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """One of several processes tells the first what its tests ran on."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = tally.told()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None)
    if output is not None:  # else it died
        tally.add(output["tally"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in tally.lines():
        terminalreporter.write_line(line)
    if "WBENGINE_TEST_COUNTS" in os.environ:  # tools/test wants to know
        counts = {"ran": _outcomes(terminalreporter), "waiting": tally.waiting_by_folder()}
        Path(os.environ["WBENGINE_TEST_COUNTS"]).write_text(json.dumps(counts), encoding="utf-8")


def _outcomes(reporter: pytest.TerminalReporter) -> dict[str, int]:
    """How many tests passed, and how many did not."""
    outcomes = "passed", "failed", "error", "skipped", "xfailed", "xpassed"
    return {name: len(reporter.stats[name]) for name in outcomes if reporter.stats.get(name)}


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads are changed as often as can be."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
