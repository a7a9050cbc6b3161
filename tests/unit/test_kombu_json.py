"""What is said to peers that are TaskFlow's, and what is understood of what they say."""

from __future__ import annotations

import datetime as dt
import decimal
import json
import math
import uuid
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from tests.unit.finding import World
from tests.unit.requesting import T0, Bench, failures
from wbengine import exceptions as exc
from wbengine._clock import ManualClock
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based.connections import queue_counts, topology
from wbengine.engines.worker_based.messages import envelope as env
from wbengine.engines.worker_based.messages import kombu_json as plain
from wbengine.engines.worker_based.requests import effects as fx

LEAVES = (
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False)
    | st.text(st.characters(exclude_categories=("Cs",)), max_size=5) | st.binary(max_size=5)
    | st.dates() | st.datetimes() | st.times() | st.uuids()
    | st.decimals(allow_nan=False)
)  # fmt: skip

KEYS = st.text("ab_", max_size=3) | st.none() | st.booleans() | st.integers(0, 9)

VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.tuples(inner, inner)
    | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@given(VALUES)
def test_it_is_kombus_json(value: Any) -> None:
    """What we write kombu reads as if it had written it, and the other way round."""
    written = json.dumps(plain.pack(value))
    theirs = kombu_json.dumps(value)
    assert kombu_json.loads(written) == kombu_json.loads(theirs)
    assert plain.unpack(plain.parse(theirs.encode(), 100)) == kombu_json.loads(theirs)


def test_numbers_that_are_none_are_theirs_too() -> None:
    body = kombu_json.dumps({"x": [math.nan, math.inf]}).encode()
    found = plain.unpack(plain.parse(body, 9))["x"]
    assert math.isnan(found[0]) and found[1] == math.inf
    envelope = env.Envelope("RESPONSE", {"x": plain.pack([-math.inf])})
    assert kombu_json.loads(envelope.encoded) == {"x": [-math.inf]}


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2}]}, "result['a'][1]: builtins.set"),
        ({(1, 2): 3}, "result: builtins.tuple is no key"),
        ("\ud800", "lone surrogates"),
        (object, "is nothing that TaskFlow's peers could read"),
    ],
)
def test_what_does_not_travel(value: Any, where: str) -> None:
    with pytest.raises(exc.NotEncodable) as caught:
        plain.pack(value)
    assert where.replace("builtins.", "") in str(caught.value).replace("builtins.", "")


def test_what_is_too_deep() -> None:
    deep: Any = []
    for _ in range(2000):
        deep = [deep]
    with pytest.raises(exc.NotEncodable, match="levels deep"):
        plain.pack(deep)
    with pytest.raises(exc.InvalidFormat, match="levels deep"):
        plain.parse(b"[" * 300 + b"]" * 300, 100)
    for body in (b"[" * 100_000, b"\xff", b"{", b"9" * 5000):
        with pytest.raises(exc.InvalidFormat):
            plain.parse(body, 100)


@pytest.mark.parametrize(
    "tree",
    [
        {"__type__": "no such", "__value__": 1},
        {"__type__": "datetime", "__value__": "soon"},
        {"__type__": "uuid", "__value__": {"hexx": "1"}},
        {"__type__": "decimal", "__value__": "x"},
        {"__type__": ["bytes"], "__value__": "x"},
        {"__type__": "bytes", "__value__": None},
        {"__type__": "base64", "__value__": "?"},
        {"__type__": "date", "__value__": "2026-01-02", "more": 1},
    ],
)
def test_a_mark_that_is_none_is_a_dict(tree: Any) -> None:
    assert plain.unpack([tree]) == [tree]


def test_some_values() -> None:
    assert plain.pack((b"\xff", decimal.Decimal("1.10"))) == [
        {"__type__": "base64", "__value__": "/w=="},
        {"__type__": "decimal", "__value__": "1.10"},
    ]
    mine = [uuid.UUID(int=7), dt.date(2026, 1, 2), dt.datetime(2026, 1, 2, 3, 4)]
    assert plain.unpack(plain.pack(mine)) == mine


# Books -------------------------------------------------------------------------------------------


def plain_bench(**options: Any) -> Bench:
    bench = Bench(ledger=None, **options)
    bench.tracker.plain = True
    bench.fleet.plain.add("q")
    return bench


def test_what_runs_for_a_topic_that_fell_silent_is_lost() -> None:
    """Whatever may be run twice is not: nothing tells the answers of two runs apart."""
    bench = plain_bench(on_worker_lost="resend")
    entry, waiting = bench.pending(), bench.pending()
    bench.answer(entry, pr.RUNNING, {}, worker=None)
    bench.fleet.end("q")
    effects = bench.recovery.on_lost([types.TopicWorker("q", ())], T0 + 60)
    (text,) = failures(effects, exc.WorkerLost)
    assert "was lost while it ran task" in text
    assert waiting.live and not [e for e in effects if isinstance(e, fx.Dispatch)]
    assert entry.worker is None


def test_what_waits_for_a_topic_is_not_sent_to_another_one() -> None:
    bench = plain_bench()
    entry = bench.pending()
    bench.fleet.end("q")
    bench.recovery.on_lost([types.TopicWorker("q", ())], T0 + 60)
    bench.fleet.set("other", 1, 1, entry.task_cls)
    assert bench.tracker.on_gained({entry.task_cls}, T0 + 61) == []
    bench.answer(entry, pr.RUNNING, {}, worker=None)
    effects = bench.answer(entry, pr.SUCCESS, {"result": 7}, worker=None)
    assert [effect.outcome.value for effect in effects if isinstance(effect, fx.Settle)] == [7]


@pytest.mark.parametrize("option", ["fail", "resend"])
def test_what_an_engine_had_under_way_as_it_died_is_lost_or_run_again(option: str) -> None:
    """Nobody can be asked, and the answers went to a queue that is gone."""
    bench = plain_bench(on_worker_lost=option)
    effects = bench.recovery.recover(bench.call(recovered=True), lambda *_: None, T0)
    if option == "fail":
        assert "was lost" in failures(effects, exc.WorkerLost)[0]
    else:
        assert [type(effect) for effect in effects] == [fx.Dispatch]


# Finders -----------------------------------------------------------------------------------------


class Plainly(World):
    """A finder of TaskFlow's workers, and what the broker says of their topics."""

    def __init__(self, **options: Any) -> None:
        self.served: dict[str, bool] = {}
        self.looked: list[str] = []
        super().__init__(topics=("t", "u"), clock=ManualClock(start=50.0), **options)
        self.finder = types.ProxyWorkerFinder(
            "me", self, self.topics, self.periodicity, self.expiry,
            interop=True, on_change=self.changed, served=self.look, clock=self.clock,
        )  # fmt: skip

    def look(self, topic: str) -> bool:
        self.looked.append(topic)
        return self.served[topic]


def test_the_silent_are_lost_unless_somebody_takes_what_is_sent_to_them() -> None:
    world = Plainly()
    world.hear(None, "t")
    world.live(30)
    world.hear(None, "u")
    world.served["t"] = True
    world.live(35)
    assert world.finder.topics() == ["t", "u"]
    assert world.looked and set(world.looked) == {"t"}
    before = len(world.looked)
    world.live(10)
    assert len(world.looked) <= before + 3  # the broker is not asked with each turn
    world.served["t"] = False
    world.live(10)
    assert [worker.topic for worker in world.lost] == ["t"]


def test_identities_are_nothing_among_plain_peers() -> None:
    """Of several on a topic one hears each question: that another one is silent means nothing."""
    world = Plainly()
    world.hear("w1")
    assert world.names == {types.NO_IDENTITY}
    assert not world.finder.speaks("t")


def test_topics_are_asked_each_period() -> None:
    world = Plainly()
    world.finder.hurry = False
    world.hear(None)
    world.finder.maybe_publish()
    world.clock.advance(5.0)
    assert world.finder.maybe_publish()
    assert [key for key, _ in world.asked if key != "me"] == ["t", "u"] * 2


# Brokers -----------------------------------------------------------------------------------------


def test_a_broker_that_can_not_be_asked_says_nothing() -> None:
    class Away:
        def connect(self, **options: Any) -> Any:
            raise OSError("away")

    assert queue_counts.inquiry(Away(), "default")("t")  # type: ignore[arg-type]


def test_interop_is_checked() -> None:
    assert topology.check_plainly(None, (), "memory://x") is None
    assert topology.check_plainly("taskflow", ("t",), "none") == "taskflow"
    with pytest.raises(ValueError, match="needs topics"):
        topology.check_plainly("taskflow", (), None)
