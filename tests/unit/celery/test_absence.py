"""What is said of a broker that is away, in the log and to whoever waited for it."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator

import pytest

from wbengine import engines, exceptions
from wbengine.interop.celery.client import absence, link
from wbengine.interop.celery.client.absence import Absence
from wbengine.interop.celery.client.addresses import Route
from wbengine.interop.celery.client.orders import CONFIRMED, NEW, PUBLISHED, Order
from wbengine.interop.celery.client.task import CeleryTask
from wbengine.interop.celery.protocol.wire import Wire
from wbengine.patterns import linear_flow

PLACE = "redis://:**@h/0"


@pytest.fixture
def _closed() -> Iterator[None]:
    yield
    link.close_all()


@pytest.fixture
def nowhere() -> Iterator[int]:
    """A port of ours at which nothing listens."""
    with socket.socket() as kept:
        kept.bind(("127.0.0.1", 0))
        yield kept.getsockname()[1]


def order(stage: int, recovered: bool = False) -> Order:
    wire = Wire({}, {}, "application/json", "utf-8", b"")
    return Order("i", wire, Route("", "q"), print, recovered=recovered, stage=stage)


def told(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [one.getMessage() for one in caplog.records if one.name == absence.LOG.name]


@pytest.mark.usefixtures("_closed")
@pytest.mark.parametrize("scheme", ["redis", "amqp"])
def test_a_broker_that_is_not_there(
    scheme: str, nowhere: int, caplog: pytest.LogCaptureFixture
) -> None:
    """The error says that, and so does the log, once; neither tells the password."""
    url = f"{scheme}://me:secret@127.0.0.1:{nowhere}/0"
    flow = linear_flow.Flow("f").add(CeleryTask("wt.add", url, timeout=2.5))
    with caplog.at_level(logging.WARNING), pytest.raises(exceptions.RequestTimeout) as caught:
        engines.run(flow)
    text = str(caught.value)
    place = f"{scheme}://me:**@127.0.0.1:{nowhere}/0"
    assert f"did not end within 2.5 s: its message never reached the broker at {place}: " in text
    assert "connection refused" in text.lower() and "secret" not in text + caplog.text
    (line,) = told(caplog)
    assert line.startswith(f"the Celery broker at {place} cannot be reached: ")
    assert line.endswith("(1 task waits)")


def test_each_reason_is_said_once_and_that_it_is_back(caplog: pytest.LogCaptureFixture) -> None:
    found = Absence(PLACE)
    found.over()  # it was there at once: nothing is to be told
    found.lost("it closed", 2)
    for why in ("no", "no", "never", "never"):
        found.unreached(why, 2)
    found.over()
    found.over()
    found.unreached("never", 0)
    assert told(caplog) == [
        f"lost the Celery broker at {PLACE}, or its results, with 2 tasks under way: it closed",
        f"the Celery broker at {PLACE} cannot be reached: no (2 tasks wait)",
        f"the Celery broker at {PLACE} cannot be reached: never (2 tasks wait)",
        f"the Celery broker at {PLACE} is back",
        f"the Celery broker at {PLACE} cannot be reached: never",
    ]


@pytest.mark.parametrize(
    ("stage", "recovered", "new", "away", "there"),
    [
        (NEW, False, "its message never reached the broker at {}", ": no", ""),
        (NEW, True, "the broker at {} did not confirm its message", ": no", ""),
        (PUBLISHED, False, "the broker at {} did not confirm its message", ": no", ""),
        (CONFIRMED, False, "", "the broker at {} has its message, but is away: no", None),
    ],
)
def test_what_is_known_of_an_order(
    stage: int, recovered: bool, new: str, away: str, there: str | None
) -> None:
    given, found = order(stage, recovered), Absence(PLACE)
    new = new.format(PLACE)
    assert found.fate(given) == new
    found.unreached("no", 1)
    assert found.fate(given) == (away.format(PLACE) if there is None else new + away)
    found.over()
    assert found.fate(given) == new
