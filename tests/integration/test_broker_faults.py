"""Connections to brokers and ledgers that break at each step of a request: the flow ends right.

As an engine or a worker comes to a crash point, all its connections are cut, or what they say or
hear is lost for a second before they are cut, or comes seconds late.  Both stay alive: so no worker
is lost, but for what a broker without a ledger cannot know (`promises.rst`, "Without a ledger").
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.support.broker_faults import End, Fault, Medium, Side, Stage, Strike, stage
from tests.support.brokers import Brokers
from tests.support.waiting import RECONNECTED, until
from wbengine import exceptions as exc

REDIS = Medium("redis", "redis")
RABBITMQ = Medium("rabbitmq", "rabbitmq")
SQLITE = Medium("rabbitmq+sqlite", "rabbitmq", "sqlite")
#: Here it is the ledger that cannot be reached.
LEDGER = Medium("rabbitmq+redis", "rabbitmq", "redis", strikes_ledger=True)

SUBMITTING = ("engine.before-submit", "engine.after-submit")
RETIRING = ("engine.before-retire", "engine.after-retire")
OPENING = ("executor.before-open", "executor.after-open")
DROPPING = ("executor.before-drop", "executor.after-drop")
PUBLISHING = ("sender.before-publish", "sender.after-publish")
SETTLING = ("proxy.before-ack", "proxy.after-ack")
CLAIMING = ("worker.before-claim", "worker.after-claim")
FINISHING = ("worker.before-finish", "worker.after-finish")
RUNNING = ("task.began",)

#: What each side comes to on the way of one request.
POINTS: dict[Medium, dict[Side, tuple[str, ...]]] = {
    RABBITMQ: {
        "engine": (*SUBMITTING, *PUBLISHING, *RETIRING),
        "worker": (*RUNNING, *PUBLISHING),
    },
    REDIS: {
        "engine": (*SUBMITTING, *OPENING, *PUBLISHING, *SETTLING, *RETIRING, *DROPPING),
        "worker": (*CLAIMING, *RUNNING, *FINISHING, *PUBLISHING),
    },
}
POINTS[SQLITE] = POINTS[LEDGER] = {
    "engine": (*SUBMITTING, *OPENING, *PUBLISHING, *RETIRING, *DROPPING),
    "worker": (*CLAIMING, *RUNNING, *FINISHING, *PUBLISHING),
}

FAULTS = (
    Fault("cut"),
    Fault("lose", "to-server"),
    Fault("lose", "to-client"),
    Fault("delay", "to-server"),
    Fault("delay", "to-client"),
)

#: Seconds within which a flow ends after the connection is back.  What was lost is asked for after
#: two beats, 10 s, and machines are busy; but no time-out may have to help, which takes 60 s.
PROMISED = 30.0

#: Connections that a side may have more than at first: threads that ask a ledger at the same time.
SPARE = 2

#: One case of each fault, over each medium, on both sides.
SMOKE = (
    (REDIS, Strike("worker", "worker.after-finish", Fault("lose", "to-client"))),
    (REDIS, Strike("engine", "executor.before-open", Fault("cut"))),
    (RABBITMQ, Strike("worker", "sender.before-publish", Fault("lose", "to-server"))),
    (RABBITMQ, Strike("engine", "sender.before-publish", Fault("lose", "to-server"))),
    (RABBITMQ, Strike("worker", "task.began", Fault("cut"))),
    (SQLITE, Strike("worker", "worker.after-claim", Fault("cut"))),
    (LEDGER, Strike("worker", "worker.before-claim", Fault("lose", "to-client"))),
)


def cases() -> list[object]:
    return [
        pytest.param(medium, strike, id=f"{medium}-{strike}", marks=_marks(medium, strike))
        for medium, sides in POINTS.items()
        for side, points in sides.items()
        for point in points
        for strike in (Strike(side, point, fault) for fault in _faults(medium, point))
    ]


def _faults(medium: Medium, point: str) -> tuple[Fault, ...]:
    """Nothing is said at a point of the engine's loop; and a client of a RabbitMQ does not care
    how late things come, which is tried without a ledger."""
    if point.startswith("engine."):
        return FAULTS[:1]
    return FAULTS[:3] if medium == SQLITE else FAULTS


def _marks(medium: Medium, strike: Strike) -> list[pytest.MarkDecorator]:
    return [] if (medium, strike) in SMOKE else [pytest.mark.slow]


class Stages:
    """Keeps the stage that was used last, as long as all goes well on it."""

    def __init__(self, folders: pytest.TempPathFactory, servers: Brokers) -> None:
        self._folders, self._servers = folders, servers
        self._kept = contextlib.ExitStack()
        self._stage: Stage | None = None

    @contextlib.contextmanager
    def use(self, medium: Medium) -> Iterator[Stage]:
        if self._stage is None or self._stage.medium != medium:
            self.close()
            folder = self._folders.mktemp("stage")
            self._stage = self._kept.enter_context(stage(medium, folder, self._servers))
        try:
            yield self._stage
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """What was left on it is an error."""
        self._stage = None
        self._kept.close()


@pytest.fixture(scope="module")
def stages(tmp_path_factory: pytest.TempPathFactory, broker_servers: Brokers) -> Iterator[Stages]:
    with contextlib.closing(Stages(tmp_path_factory, broker_servers)) as made:
        yield made


@pytest.mark.timeout(240)
@pytest.mark.parametrize(("medium", "strike"), cases())
def test_flow_ends_right_after_a_fault_of_connections(
    medium: Medium, strike: Strike, stages: Stages
) -> None:
    with stages.use(medium) as on:
        expect_right(medium, strike, on.run(strike, within=PROMISED))
        # And all goes on as before, once both are back: what a broker without a ledger sends to who
        # is cut off is lost with him.
        until(lambda: all(on.connections().values()), RECONNECTED)
        expect_right(medium, None, on.run(within=PROMISED))
        until(lambda: on.spare <= SPARE, RECONNECTED)


def expect_right(medium: Medium, strike: Strike | None, end: End) -> None:
    assert len(set(end.once)) == len(end.once) <= 1
    assert len(set(end.again)) == len(end.again)
    if isinstance(end.error, exc.WorkerLost) and strike and may_be_lost(medium, strike):
        assert "once" in str(end.error)
        return
    assert end.error is None
    assert end.results == {"once": 2, "again": 2}
    assert len(end.once) == 1
    assert len(end.again) == 1 or not medium.has_ledger


def may_be_lost(medium: Medium, strike: Strike) -> bool:
    """Whether a request that must not run twice may fail: nobody knows whether it was begun."""
    return not medium.has_ledger and strike.side == "worker"
