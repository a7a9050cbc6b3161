"""Interoperability with TaskFlow: values, requests and discovery of workers."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from kombu.utils import json as kombu_json

from tests.support.values import same
from tests.unit.manual_finder import World
from wbengine import exceptions as exc
from wbengine import transports
from wbengine._concurrency.manual_clock import ManualClock
from wbengine.engines.worker_based import types
from wbengine.engines.worker_based._connections import queue_counts, topology
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import kombu_json as plain

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
@example([math.nan, -math.inf, None])
def test_encoded_values_are_interchangeable_with_kombu(value: Any) -> None:
    written = env.Envelope("RESPONSE", {"result": plain.pack(value)}).encoded
    theirs = kombu_json.dumps({"result": value})
    expected = kombu_json.loads(theirs)
    assert same(kombu_json.loads(written), expected)
    assert same(plain.unpack(plain.parse(theirs.encode(), 100)), expected)


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": [1, {2}]}, "result['a'][1]: builtins.set"),
        ({(1, 2): 3}, "result: builtins.tuple is a type of key"),
        ("\ud800", "lone surrogates"),
        (object, "is a type that TaskFlow's peers cannot read"),
    ],
    ids=["set", "tuple-as-key", "lone-surrogate", "class"],
)
def test_value_unknown_to_taskflow_is_rejected_with_its_path(value: Any, where: str) -> None:
    with pytest.raises(exc.NotEncodable) as caught:
        plain.pack(value)
    assert where.replace("builtins.", "") in str(caught.value).replace("builtins.", "")


def test_too_deep_or_malformed_body_is_rejected() -> None:
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


INVALID_MARKERS: dict[str, Any] = {
    "unknown-type": {"__type__": "no such", "__value__": 1},
    "invalid-datetime": {"__type__": "datetime", "__value__": "soon"},
    "invalid-uuid": {"__type__": "uuid", "__value__": {"hexx": "1"}},
    "invalid-decimal": {"__type__": "decimal", "__value__": "x"},
    "type-is-list": {"__type__": ["bytes"], "__value__": "x"},
    "invalid-bytes": {"__type__": "bytes", "__value__": None},
    "invalid-base64": {"__type__": "base64", "__value__": "?"},
    "additional-field": {"__type__": "date", "__value__": "2026-01-02", "more": 1},
}


@pytest.mark.parametrize("tree", INVALID_MARKERS.values(), ids=INVALID_MARKERS)
def test_invalid_type_marker_is_unpacked_as_dict(tree: Any) -> None:
    assert plain.unpack([tree]) == [tree]


# Discovery ----------------------------------------------------------------------------------------


class Plainly(World):
    """A finder of TaskFlow's workers, with the consumers of their topics."""

    def __init__(self, **options: Any) -> None:
        self.served: dict[str, bool] = {}
        self.looked: list[str] = []
        super().__init__(topics=("t", "u"), clock=ManualClock(start=50.0), **options)
        self.finder = types.ProxyWorkerFinder(
            "me", self, self.topics, self.periodicity, self.expiry,
            interop=True, on_change=self.changed, has_consumer=self.look, clock=self.clock,
        )  # fmt: skip

    def look(self, topic: str) -> bool:
        self.looked.append(topic)
        return self.served[topic]


def test_silent_topic_is_lost_only_if_its_queue_has_no_consumer() -> None:
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
    assert len(world.looked) <= before + 3  # the broker is not queried in each iteration
    world.served["t"] = False
    world.live(10)
    assert [worker.topic for worker in world.lost] == ["t"]


def test_worker_identities_are_ignored_in_interop_mode() -> None:
    """Each question reaches one worker of a topic: the silence of others proves nothing."""
    world = Plainly()
    world.hear("w1")
    assert world.names == {types.NO_IDENTITY}
    assert not world.finder.uses_extended_protocol("t")


def test_finder_queries_all_topics_each_period() -> None:
    world = Plainly()
    world.finder.schedule.needs_reports = False
    world.hear(None)
    world.finder.maybe_publish()
    world.clock.advance(5.0)
    assert world.finder.maybe_publish()
    assert [key for key, _ in world.asked if key != "me"] == ["t", "u"] * 2


# Brokers ------------------------------------------------------------------------------------------


def test_consumer_check_passes_if_broker_is_unreachable() -> None:
    away = transports.kombu_target("amqp://127.0.0.1:1/")
    assert queue_counts.consumer_check(away, "default")("t")


def test_interop_taskflow_without_topics_is_refused() -> None:
    assert topology.check_interop(None, "memory://x") is None
    assert topology.check_interop("taskflow", "none") == "taskflow"
    topology.check_interop_topics("taskflow", ("t",))
    with pytest.raises(ValueError, match="requires topics"):
        topology.check_interop_topics("taskflow", ())
