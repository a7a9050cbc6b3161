"""Fixtures and pytest hooks for all tests."""

from __future__ import annotations

import gc
import itertools
import json
import os
import signal
import sys
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from tests.support import nightly, tally
from tests.support.amounts import amount
from tests.support.brokers import (  # noqa: F401  (fixtures)
    broker_servers,
    rabbitmq_server,
    rabbitmq_url,
    redis_server,
    redis_url,
    rowless_url,
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

# Registered here, because tests of other folders import these modules, too.
pytest.register_assert_rewrite("tests.contract.flows.case", "tests.contract.flows.trace")

# Properties do not test speed, and the machine can be busy.
_ALL: Any = {
    "deadline": None,
    "suppress_health_check": [HealthCheck.too_slow],
    "max_examples": amount(30, 400),
}
settings.register_profile("local", **_ALL)
# Random examples must not make unrelated changes fail in CI; local runs find new examples.
settings.register_profile("ci", **_ALL, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell ignores these for commands in the background, and so would all processes of the tests.
signal.signal(signal.SIGINT, signal.default_int_handler)
signal.signal(signal.SIGQUIT, signal.SIG_DFL)


@pytest.fixture(autouse=True)
def check_sigint_handler() -> Iterator[None]:
    """Check that the test restored the handler of SIGINT.

    With another handler, a later test that interrupts itself would end the whole run silently.
    """
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


#: After this number of tests, the collector scans only the objects of later tests.
TESTS_PER_FREEZE = 50


@pytest.hookimpl(trylast=True)
def pytest_runtest_logfinish() -> None:
    """Delete the garbage of these tests, and let the collector ignore what they left."""
    if next(_ended_tests) % TESTS_PER_FREEZE == 0:
        gc.collect()
        gc.freeze()


_ended_tests = itertools.count(1)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disable the garbage collector during the collection, and freeze its result.

    Modules and tests live until the end, so the collector need not scan them. Later, it scans old
    objects, of which a process of the tests has many, a tenth as often as usual.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        young, middle, old = gc.get_threshold()
        gc.set_threshold(young, middle, 10 * old)
        gc.enable()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share-of", metavar="COMMIT", help="slow tests: only its share")
    parser.addoption(
        "--part", metavar="K/N", type=nightly.parse_part, default=(1, 1), help="one part of N"
    )


def pytest_configure(config: pytest.Config) -> None:
    commit = config.getoption("--share-of")
    if commit is not None:
        config.pluginmanager.register(nightly.Share(commit))
    else:
        config.pluginmanager.register(nightly.All(config.getoption("--part")))


def pytest_deselected(items: Sequence[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("slow"):
            tally.waiting.add(item.nodeid)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Send the data of this process of a parallel run to the first process."""
    output = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["tally"] = tally.export()


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any) -> None:
    output = getattr(node, "workeroutput", None)
    if output is not None:  # otherwise the process crashed
        tally.add(output["tally"])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for line in tally.lines():
        terminalreporter.write_line(line)
    if "WBENGINE_TEST_COUNTS" in os.environ:  # set by tools/test
        counts = {"ran": _outcomes(terminalreporter), "waiting": tally.waiting_by_folder()}
        Path(os.environ["WBENGINE_TEST_COUNTS"]).write_text(json.dumps(counts), encoding="utf-8")


def _outcomes(reporter: pytest.TerminalReporter) -> dict[str, int]:
    """Return the number of tests with each outcome."""
    outcomes = "passed", "failed", "error", "skipped", "xfailed", "xpassed"
    return {name: len(reporter.stats[name]) for name in outcomes if reporter.stats.get(name)}


@pytest.fixture
def frequent_thread_switches() -> Iterator[None]:
    """Switch between threads as often as possible."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)
