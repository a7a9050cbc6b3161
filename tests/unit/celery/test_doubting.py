"""What a worker does about messages that another one may have begun."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import dataclass, replace
from typing import Any

import pytest

from wbengine import invocation
from wbengine.interop.celery.protocol import codec
from wbengine.interop.celery.worker import deeds, doubting, inquiring, remembering, service
from wbengine.interop.celery.worker.jobs import Past

from .test_service import ADD, NOW, TASKS, Bench, kinds, message_of

PATIENCE = doubting.Patience()

_ACTIVE: dict[str, Any] = {"id-1": [("active", {})]}


def ended(attempt: int = 1) -> dict[str, Any]:
    return {"id-1": [("ended", {"id": "id-1", "attempt": attempt})]}


def ask(bench: Bench, fates: Any, after: float = 1.0) -> Any:
    bench.now = bench.service.next_due()
    assert bench.service.on_due(bench.now) == [deeds.Inquire(["id-1"])]
    bench.now += after
    return bench.service.on_answers(fates, bench.now)


def in_doubt(**options: Any) -> Bench:
    bench = Bench(**options)
    assert bench.take(message_of(), Past.BEGUN, "first") == []
    assert bench.service.query(["id-1"])["id-1"][0] == "doubted"
    assert bench.service.prefetch == 2 and bench.service.busy
    return bench


def test_what_ended_elsewhere_is_acknowledged() -> None:
    bench = in_doubt()
    assert ask(bench, ended()) == [deeds.Acknowledge("first")]
    assert bench.service.counts["elsewhere"] == 1 and not bench.service.busy
    assert bench.service.next_due() is None
    assert bench.take(message_of(), Past.BEGUN, "again") == [deeds.Acknowledge("again")]


def test_what_runs_elsewhere_is_held_for_as_long_as_it_takes() -> None:
    bench = in_doubt()
    for _ in range(20):
        assert ask(bench, _ACTIVE) == []
    for _ in range(3):
        assert ask(bench, {}) == []
    assert ask(bench, _ACTIVE) == []  # it was away for a while
    seen = bench.now
    assert bench.nobody_knows()[0].result.value["exc_type"] == "WorkerLostError"
    assert bench.now - seen > PATIENCE.lost_after


@pytest.mark.parametrize("told", [{"id-1": [("ended", "x")]}, {"x": [("active", {})]}])
def test_answers_that_say_nothing(told: Any) -> None:
    bench = in_doubt()
    for _ in range(3):
        assert ask(bench, told) == []
    assert kinds(ask(bench, told)) == ["End"]


def test_the_end_of_an_earlier_try_is_none_of_this_one() -> None:
    bench = Bench()
    bench.take(message_of(retries=1), Past.BEGUN)
    assert ask(bench, ended(1)) == []
    assert kinds(ask(bench, ended(3))) == ["Acknowledge"]  # there is no later one without this


def test_a_broker_that_is_away_says_nothing_about_workers() -> None:
    bench = in_doubt()
    for _ in range(6):
        assert ask(bench, {}, after=60.0) == []


def test_it_is_put_back_as_it_came() -> None:
    for leave in ("drain", "suspend", "abandon"):
        bench = in_doubt()
        assert getattr(bench.service, leave)(NOW) == [deeds.Requeue("first")]
        assert not bench.service.busy and bench.service.next_due() is None
        assert bench.service.on_answers({}, NOW) == []
    bench = in_doubt(max_hold=9.0)
    assert ask(bench, _ACTIVE) == ask(bench, _ACTIVE) == []
    bench.now = bench.service.next_due()
    assert bench.service.on_due(bench.now) in ([deeds.Requeue("first")], [deeds.Inquire(["id-1"])])
    bench = in_doubt(max_hold=2.0)
    assert ask(bench, _ACTIVE) == []
    bench.now = bench.service.next_due()
    assert bench.service.on_due(bench.now) == [deeds.Requeue("first")]


def test_a_lost_connection_takes_it_away_while_others_are_asked() -> None:
    bench = in_doubt()
    bench.now = bench.service.next_due()
    bench.service.on_due(bench.now)
    bench.service.on_disconnected()
    assert not bench.service.busy
    assert bench.take(message_of(), Past.BEGUN, "second") == []
    assert bench.service.next_due() is None  # not before the answers are there
    assert bench.service.on_answers(ended(), bench.now) == []  # which were not about this one
    assert ask(bench, ended()) == [deeds.Acknowledge("second")]


def test_one_that_comes_again_is_the_same() -> None:
    bench = in_doubt()
    assert bench.take(message_of(), Past.BEGUN, "second") == [deeds.Acknowledge("first")]
    assert ask(bench, ended()) == [deeds.Acknowledge("second")]


def test_revoked_or_unknown_it_is_only_told_when_nobody_has_it() -> None:
    bench = in_doubt()
    assert bench.service.revoke(["id-1"], True, NOW) == []
    assert bench.nobody_knows()[0].state == "REVOKED"
    bench = Bench()
    assert bench.take(message_of(task="nobody.knows"), Past.BEGUN) == []
    assert bench.nobody_knows()[0].result.value["exc_type"] == "NotRegistered"


def test_what_a_worker_tells_of_its_own() -> None:
    bench = Bench()
    job = bench.run(message_of())
    assert bench.service.query(["id-1"])["id-1"][0] == "active"
    bench.finish(job, 3)
    assert bench.service.query(["id-1"])["id-1"][0] == "active"  # nobody has been told
    bench.service.on_done(job, job.receipt)
    assert bench.service.query(["id-1"]) == {"id-1": ["ended", {"id": "id-1", "attempt": 1}]}


def test_the_latest_ends_are_remembered() -> None:
    known = remembering.Ended(2)
    for key in (("a", 3), ("b", 1), ("a", 1), ("c", 1)):
        known.note(key)
    assert ("a", 3) in known and ("a", 4) not in known and ("b", 1) not in known
    assert [known.attempt(id) for id in "abc"] == [3, 0, 1]


def given(**options: Any) -> Bench:
    bench = Bench(**options)
    assert bench.take(message_of(), Past.GIVEN, "first") == []
    assert bench.service.query(["id-1"]) == {} and bench.service.busy
    return bench


def test_what_was_only_given_to_somebody_runs_when_nobody_has_it() -> None:
    bench = given()
    asked = bench.service.next_due()
    assert asked - bench.now < 0.5
    (mark,) = ask(bench, {"x": [("active", {})]})
    assert mark == deeds.Mark(mark.job) and mark.job.id == "id-1"
    assert bench.service.next_due() is None


def test_what_was_given_to_somebody_who_has_it_is_left_to_that_one() -> None:
    for state in ("active", "doubted", "reserved"):
        bench = given()
        told = {"id-1": [(state, {})]}
        assert ask(bench, told) == ask(bench, told) == []
        assert ask(bench, ended()) == [deeds.Acknowledge("first")]


def test_after_a_new_connection_others_may_not_be_back_yet() -> None:
    bench = Bench()
    bench.service.on_connected(NOW)
    assert bench.come(message_of("begun"), Past.BEGUN) == []
    assert bench.service.on_due(bench.service.next_due()) == [deeds.Inquire(["begun"])]
    assert bench.come(message_of(), Past.GIVEN, "first") == []
    assert bench.service.on_answers({}, NOW + 1) == []
    bench.now = bench.service.next_due()
    assert bench.now == NOW + PATIENCE.back
    assert bench.service.on_due(bench.now) == [deeds.Inquire(["begun", "id-1"])]
    (mark,) = bench.service.on_answers({}, bench.now + 1)
    assert mark.job.id == "id-1"


def test_as_many_are_asked_for_as_will_begin_soon() -> None:
    bench = Bench()
    assert bench.service.prefetch == 1
    for number in range(100):
        bench.come(message_of(str(number)), Past.GIVEN)
    assert bench.service.prefetch == 33
    bench.service.began += 50
    told = {str(number): [("active", {})] for number in range(100)}
    for prefetch in (101, 33):
        bench.now = bench.service.next_due()
        bench.service.on_due(bench.now)
        bench.service.on_answers(told, bench.now)
        assert bench.service.prefetch == prefetch


def test_a_note_that_was_made_for_nothing_elsewhere() -> None:
    for note, fate in (("n.1", ["Run"]), ("n.2", [])):
        bench = Bench()
        bench.come(message_of(), Past.BEGUN, note="n.1")
        told = {"id-1": [("spared", {"id": "id-1", "notes": [note]}), ("spared", "x")]}
        assert [type(effect).__name__ for effect in ask(bench, told)] == fate


def test_answers_of_all_kinds_are_merged() -> None:
    told = [
        {"a@x": {"one": ["active", {}], "two": "?"}}, {"b@x": {"error": "no"}}, 7, {"c@x": None},
        {"d@x": {"one": ("ended", {"attempt": 1}), "three": []}},
    ]  # fmt: skip
    merged = inquiring._merged(told)
    assert merged == {"one": [("active", {}), ("ended", {"attempt": 1})]}


# Two workers and a broker. ------------------------------------------------------------------------


_nonces = itertools.count(1)


@dataclass
class Copy:
    """A message in the broker."""

    id: str
    past: Past = Past.NONE
    note: str = ""
    #: When it took the place of the message that it is a note of.
    since: float = 0.0


class Node:
    """A worker: its connection may be lost, and is back within a few seconds."""

    def __init__(self) -> None:
        self.core: Any = service.Service(
            TASKS, 2, accepted=Bench().service._accepted, worker="w", ahead=0,
            nonce=f"nonce-{next(_nonces)}",
        )  # fmt: skip
        self.unsettled: dict[Any, Copy] = {}
        self.marks: list[Any] = []
        self.pool: list[Any] = []
        self.duties: list[Any] = []
        self.asking: Any = None
        self.back = 0.0


class Fleet:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = NOW
        self.nodes = [Node(), Node()]
        self.queue: list[Copy] = []
        self.runs: dict[str, Node] = {}
        self.ends: Counter[tuple[str, str]] = Counter()
        self.number = self.doubts = self.crashes = 0

    def apply(self, node: Node, effects: Any) -> None:
        for effect in effects:
            match effect:
                case deeds.Mark(job):
                    node.marks.append(job)
                case deeds.Run(job):
                    assert job.id not in self.runs, f"{job.id} runs twice"
                    self.runs[job.id] = node
                    node.pool.append(job)
                case deeds.Acknowledge(receipt):
                    node.unsettled.pop(receipt, None)
                case deeds.Requeue(receipt):
                    if copy := node.unsettled.pop(receipt, None):
                        self.queue.append(_again(copy))
                case deeds.Inquire(ids):
                    node.asking = (self.now, ids)
                case deeds.End() | deeds.GiveBack():
                    node.duties.append(effect)
                case _:
                    raise AssertionError(effect)

    def deliver(self, node: Node) -> None:
        if node.back > self.now or len(node.unsettled) >= node.core.prefetch or not self.queue:
            return
        if not node.core._takes:
            return
        copy = self.queue.pop(0)
        receipt = object()
        node.unsettled[receipt] = copy
        wire = codec.encode(message_of(copy.id, ADD))
        self.apply(node, node.core.on_message(wire, receipt, "q", copy.past, self.now, copy.note))
        self.doubts += bool(node.core.jobs.doubtful)

    def lose(self, node: Node) -> None:
        if self.now - node.back < 10.0:
            return  # others can reach it now and then
        self.leave(node)
        node.back = self.now + self.rng.uniform(0.1, 6.0)
        self.asked_anew(node)

    def leave(self, node: Node) -> None:
        self.queue[:0] = [_again(copy) for copy in node.unsettled.values()]
        node.unsettled.clear()
        node.marks.clear()
        node.core.on_disconnected()

    def asked_anew(self, node: Node) -> None:
        node.core.on_connected(node.back)

    def mark(self, node: Node) -> None:
        """The broker notes what begins; not everybody hears of that."""
        if not node.marks:
            return
        job = node.marks.pop(0)
        copy = node.unsettled[job.receipt]
        copy.past, copy.note, copy.since = Past.BEGUN, job.note, self.now
        if self.rng.random() < 0.1 and self.now - node.back >= 10.0:
            self.lose(node)
        else:
            self.apply(node, node.core.on_marked([job], self.now))
            if self.rng.random() < 0.1:
                self.crash(node)

    def crash(self, node: Node) -> None:
        """The broker is killed: the last messages that went are there again.  All who lost their
        connection are back within two seconds."""
        if any(self.now - each.back < 10.0 for each in self.nodes):
            return
        self.crashes += 1
        for each in self.nodes:
            late = [c for c in each.unsettled.values() if c.note and self.now - c.since < 1.0]
            self.leave(each)
            self.queue[:0] = [Copy(copy.id, Past.GIVEN) for copy in late]
        for copy in self.queue:
            if copy.past is Past.NONE:
                copy.past = Past.GIVEN
        back = self.now + self.rng.uniform(0.1, 6.0)
        for each in self.nodes:
            each.back = back + self.rng.uniform(0.0, 2.0)
            self.asked_anew(each)

    def kill(self, node: Node) -> None:
        self.queue[:0] = [_again(copy) for copy in node.unsettled.values()]
        self.nodes[self.nodes.index(node)] = Node()

    def finish(self, node: Node) -> None:
        if node.pool:
            job = node.pool.pop(self.rng.randrange(len(node.pool)))
            outcome = invocation.Outcome(3, "local", self.now, self.now)
            self.apply(node, node.core.on_finished(job, outcome, self.now))

    def work(self, node: Node) -> None:
        if not node.duties:
            return
        effect = node.duties.pop(0)
        job = effect.job
        if isinstance(effect, deeds.GiveBack):
            self.queue.append(Copy(job.id))
        else:
            self.ends[job.id, effect.state] += 1
            runner = self.runs.get(job.id)
            if effect.state == "FAILURE":
                assert runner not in self.nodes, f"{job.id} is no failure: its runner lives"
        node.unsettled.pop(job.receipt, None)
        self.apply(node, node.core.on_done(job, job.receipt))

    def pause(self, node: Node) -> None:
        if node.core._takes:
            self.apply(node, node.core.suspend(self.now))
        else:
            self.apply(node, node.core.resume(self.now))

    def pass_time(self) -> None:
        self.now += 0.5
        for node in self.nodes:
            due = node.core.next_due()
            if due is not None and due <= self.now:
                self.apply(node, node.core.on_due(self.now))
            if node.asking and self.now >= node.asking[0] + 1 and node.back <= self.now:
                ids, node.asking = node.asking[1], None
                replies = [
                    {str(at): each.core.query(ids)}
                    for at, each in enumerate(self.nodes)
                    if each.back <= self.now
                ]
                fates = inquiring._merged(replies)
                self.apply(node, node.core.on_answers(fates, self.now))

    def step(self) -> None:
        rng, node = self.rng, self.rng.choice(self.nodes)
        if rng.random() < 0.03 and self.number < 40:
            self.number += 1
            self.queue.append(Copy(f"t{self.number}"))
        chosen = rng.choices(
            [
                self.deliver, self.mark, self.finish, self.work, self.lose, self.kill, self.crash,
                self.pause,
            ],
            [10, 8, 0.4, 4, 0.5, 0.02, 0.05, 0.1],
        )[0]  # fmt: skip
        chosen(node)
        self.pass_time()


def _again(copy: Copy) -> Copy:
    """As it is when it comes again."""
    return replace(copy, past=copy.past if copy.note else Past.GIVEN)


def test_two_workers_and_a_broker_that_delivers_again() -> None:
    doubts = elsewhere = failures = crashes = 0
    for seed in range(60):
        fleet = Fleet(seed)
        try:
            for _ in range(600):
                fleet.step()
            for node in fleet.nodes:
                if not node.core._takes:
                    fleet.pause(node)
            for _ in range(400):
                for node in fleet.nodes:
                    fleet.deliver(node)
                    fleet.mark(node)
                    fleet.finish(node)
                    fleet.work(node)
                fleet.pass_time()
            assert not fleet.queue and not any(node.core.busy for node in fleet.nodes)
            told = {id for id, _ in fleet.ends}
            assert told == {f"t{number + 1}" for number in range(fleet.number)}, "lost"
        except AssertionError as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        doubts += fleet.doubts
        crashes += fleet.crashes
        failures += sum(state == "FAILURE" for _, state in fleet.ends)
        elsewhere += sum(node.core.counts.get("elsewhere", 0) for node in fleet.nodes)
    assert crashes > 50 and doubts > 100 and elsewhere > 50 and failures > 5  # it does happen


def test_a_round_takes_less_than_the_pause() -> None:
    assert inquiring._WAIT + PATIENCE.pause < PATIENCE.gap
