"""What follows from messages that Celery's client sends: the same calls as on Celery's workers."""

from __future__ import annotations

import functools
import itertools
import json
import math
import random
from collections import Counter
from typing import Any

import pytest

from tests.unit.celery import making
from tests.unit.celery.test_versions_with_celery import celery
from wbengine.interop.celery.canvas import sequel
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.steps import CountChord, Following, Missed, Send
from wbengine.interop.celery.protocol.wire import Wire

ACCEPTED = serializers.Accepted()
COUNT = 200


class Workers:
    """Workers that run all messages, and the result backend beside them."""

    def __init__(self, found: dict[str, Any]) -> None:
        self.waiting = [
            codec.decode(
                Wire(
                    row["headers"], row["properties"], row["content_type"],
                    row["content_encoding"], row["body"].encode(),
                ),
                ACCEPTED,
            )
            for row in found["messages"]
        ]  # fmt: skip
        self.sizes: dict[str, int] = dict(found["sizes"])
        self.saved: dict[str, Any] = dict(found["saved"])
        self.parts: dict[str, dict[str, tuple[float, str, Any]]] = {}
        self.results: dict[str, tuple[str, Any]] = {}
        self.calls: list[list[Any]] = []
        self.children: dict[str, list[Any]] = {}
        ids = itertools.count()
        self.given: dict[str, Any] = {"new_id": lambda: f"new-{next(ids):026}", "now": 0.0}

    def run(self) -> None:
        while self.waiting:
            message = self.waiting.pop(0)
            self.calls.append([message.task, making.plain(message.args)])
            if message.task == "sim.fail":
                self.fail(message)
            else:
                error = message.task == "sim.err"
                self.succeed(message, making.said(*(("an error",) if error else message.args)))

    def succeed(self, message: TaskMessage, value: Any) -> None:
        following = sequel.next_of(message, value, **self.given)
        self.children[message.id] = following.children
        self.do(following)
        self.results[message.id] = "SUCCESS", value
        self.count(message, part_of(message), "SUCCESS", value)

    def fail(self, message: TaskMessage) -> None:
        self.results[message.id] = "FAILURE", "ValueError"
        self.count(message, part_of(message), "FAILURE", None)
        self.miss(message, sequel.never_run(message), "ValueError")
        self.do(sequel.errbacks_of(message, **self.given))

    def miss(self, message: TaskMessage, missed: list[Missed], error: str) -> None:
        for one in missed:
            self.results[one.id] = "FAILURE", error
            self.count(message, one, "FAILURE", None)

    def do(self, following: Following) -> None:
        for step in following.steps:
            if isinstance(step, Send):
                self.waiting.append(codec.decode(codec.encode(step.message), ACCEPTED))
            elif isinstance(step, CountChord):
                self.sizes[step.group] = step.size
            else:
                self.saved[step.group] = step.result

    def count(self, message: TaskMessage, part: Missed, state: str, value: Any) -> None:
        chord, group, index = part.chord, part.group, part.group_index
        if chord is None or group is None:
            return
        parts = self.parts.setdefault(group, {})
        known = part.id in parts
        parts.setdefault(part.id, (math.inf if index is None else index, state, value))
        if known or len(parts) != self.sizes.get(group):
            return
        if any(state == "FAILURE" for _, state, _ in parts.values()):
            following, missed = sequel.chord_broken(chord, message, **self.given)
            self.miss(message, missed, "ChordError")
            self.do(following)
        elif group in self.saved:
            joined = [self.value_of(one) for one in self.saved[group][1]]
            self.do(sequel.body_of(chord, joined, message, **self.given))
        else:
            values = [value for *_, value in sorted(parts.values(), key=lambda part: part[0])]
            self.do(sequel.body_of(chord, values, message, **self.given))

    def value_of(self, told: Any) -> Any:
        (id, _), children = told
        if children is None:
            return self.results[id][1]
        return [self.value_of(one) for one in children]


def part_of(message: TaskMessage) -> Missed:
    """What a message counts as in its chord."""
    return Missed(message.id, message.group, message.group_index, message.chord)


def final(results: dict[str, Any], told: Any) -> Any:
    """The states and values of a result that was told."""
    (id, _), children = told
    if children is None:
        return results.get(id, ["PENDING", None])
    return [final(results, one) for one in children]


@functools.cache
def compared(failing: float, protocol: int) -> list[tuple[str, Workers, dict[str, Any]]]:
    """Random canvases, run by our words, and what Celery made of them; not to be changed."""
    specs = [making.canvas(random.Random(seed), 0, failing) for seed in range(COUNT)]
    lines = [["canvas", spec, protocol] for spec in specs]
    found = []
    for spec, theirs in zip(specs, celery(lines), strict=True):
        workers = Workers(theirs)
        workers.run()
        found.append((json.dumps(spec), workers, theirs))
    return found


def ends(workers: Workers, theirs: dict[str, Any]) -> tuple[Any, Any]:
    """What the client gets of our workers, and of Celery's."""
    mine, other = (final(one, theirs["told"]) for one in (workers.results, theirs["results"]))
    return json.loads(json.dumps(mine)), other


def test_canvases_come_to_the_same_end() -> None:
    for shown, workers, theirs in compared(0.0, 2):
        mine, other = ends(workers, theirs)
        assert Counter(map(str, workers.calls)) == Counter(map(str, theirs["calls"])), shown
        assert mine == other and "PENDING" not in json.dumps(mine), shown


def test_canvases_that_fail_come_to_the_same_end() -> None:
    """Where Celery leaves a client waiting forever, ours is told of the failure."""
    failed = same = 0
    for shown, workers, theirs in compared(0.15, 2):
        mine, other = ends(workers, theirs)
        assert "PENDING" not in json.dumps(mine), shown
        failed += "FAILURE" in json.dumps(mine)
        calls, others = (Counter(map(str, one)) for one in (workers.calls, theirs["calls"]))
        assert calls >= others, shown
        if "PENDING" not in json.dumps(other):
            # An errback of what a chord as a chord's body ends with, which Celery forgets.
            assert mine == other and set(calls - others) <= {"['sim.err', ['id']]"}, shown
            same += calls == others
    assert failed > COUNT / 5 and same > COUNT / 2


@pytest.mark.parametrize("failing", [0.0, 0.15])
def test_canvases_of_version_1_come_to_the_same_end(failing: float) -> None:
    """Celery's client of version 1 links some calls twice, and its workers run them twice."""
    pairs = zip(compared(failing, 1), compared(failing, 2), strict=True)
    more = 0
    for (shown, workers, theirs), (_, others, truth) in pairs:
        assert Counter(map(str, workers.calls)) == Counter(map(str, others.calls)), shown
        assert ends(workers, theirs)[0] == ends(others, truth)[0], shown
        more += len(theirs["calls"]) > len(workers.calls)
    assert more
