"""Whatever message comes, a worker deals with it: no call of its `Service` ever raises."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

from tests.support.amounts import amount
from tests.unit.celery import errands, making
from tests.unit.celery.test_message_mutations import MUTATIONS
from tests.unit.celery.test_versions_with_celery import ours
from wbengine import exceptions, invocation
from wbengine.interop.celery import retrying
from wbengine.interop.celery.canvas import chords
from wbengine.interop.celery.protocol import codec, serializers
from wbengine.interop.celery.protocol.steps import Send
from wbengine.interop.celery.worker import deeds, mapping, service
from wbengine.interop.celery.worker.jobs import Past
from wbengine.types.failure import Failure

COUNT = amount(1_000, 3_000)
NOW = 1_700_000_000.0
TASKS = mapping.Tasks([errands])
NAMES = [f"{errands.__name__}.add", f"{errands.__name__}.safe", "celery.map", "proj.unknown"]

OUTCOMES: list[Any] = [
    3,
    "\ud800",
    1e999,
    object(),
    Failure.from_exception(ValueError("\ud800", 10**30, object())),
    Failure.from_exception(exceptions.TimeLimitExceeded()),
    Failure(exception_str="x", exc_type_names=()),
    retrying.Again(NOW + 5, Failure.from_exception(KeyError("\udcff"))),
    retrying.Again(-1e18),
    retrying.Again(NOW, None, "", [object()], {"x": {1: 2}}),
    retrying.Refusal(Failure.from_exception(ValueError()), requeue=True),
    retrying.Refusal(Failure.from_exception(ValueError()), ignored=True),
]


def past_of(rng: random.Random) -> Past:
    return rng.choices(list(Past), [9, 1, 1])[0]


class Shell:
    """Does at once what is asked for, and looks at all of it."""

    def __init__(self, serializer: str) -> None:
        self.core = service.Service(
            TASKS,
            2,
            accepted=serializers.Accepted((serializer, "json", "msgpack", "yaml")),
            worker="w",
            max_held=100,
            langs={"java": "j"},
            telling=True,
        )
        self.seen: Counter[str] = Counter()
        self.settled = 0

    def apply(self, effects: list[Any], rng: random.Random, now: float) -> None:
        for effect in effects:
            self.seen[type(effect).__name__] += 1
            match effect:
                case deeds.Run(job):
                    outcome = invocation.Outcome(rng.choice(OUTCOMES))
                    self.apply(self.core.on_finished(job, outcome, now), rng, now)
                case deeds.Mark(job):
                    self.apply(self.core.on_marked([job], now), rng, now)
                case deeds.End(job=job):
                    self.settled += 1
                    self.look_at(effect, now)
                    assert self.core.on_done(job, job.receipt) == []
                case deeds.GiveBack(job):
                    self.settled += 1
                    assert self.core.on_done(job, job.receipt) == []
                case deeds.Acknowledge() | deeds.Reject() | deeds.Redirect() | deeds.Requeue():
                    self.settled += 1
                case deeds.Inquire():
                    self.apply(self.core.on_answers({}, now), rng, now)
                case deeds.Tell(_, fields):
                    serializers.dump(fields)
                case deeds.Cancel() | deeds.Note():
                    raise AssertionError(effect)

    def look_at(self, end: deeds.End, now: float) -> None:
        if end.result is not None:
            assert end.result.encoded
        for fallen in end.fallout:
            assert fallen.result is not None and fallen.result.encoded
        for step in end.steps:
            if isinstance(step, Send):
                codec.encode(step.message)
        if end.chord is not None:
            self.seen["part"] += 1
            parts = [("a", "SUCCESS", 1), (end.chord.id, end.chord.state, end.chord.value)]
            for count in (1, 2):
                fallen_ones, _ = chords.finished(
                    end.job.message, parts[:count], now, lambda: "new", end.chord
                )
                assert all(one.result and one.result.encoded for one in fallen_ones)


def test_no_message_hurts_a_worker() -> None:
    shells = [Shell(name) for name in ("json", "msgpack", "yaml")]
    for seed in range(COUNT):
        rng = random.Random(seed)
        shell = shells[seed % 3]
        protocol = rng.choice((1, 2))
        message = ours(making.message(rng, protocol), protocol)
        message.task = rng.choice(NAMES)
        if rng.random() < 0.5:
            message.eta = message.expires = None
        wire = codec.encode(message, serializer="json")
        for _ in range(rng.choice((0, 1, 1, 2))):
            rng.choice(MUTATIONS)(rng, wire)
        try:
            effects = shell.core.on_message(wire, object(), "q", past_of(rng), NOW)
            shell.apply(effects, rng, NOW)
            due = shell.core.next_due()
            if due is not None:
                shell.apply(shell.core.on_due(due), rng, due)
            shell.core.active(), shell.core.scheduled(), shell.core.reserved()
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
    for shell in shells:
        shell.apply(shell.core.drain(NOW), random.Random(0), NOW)
        assert not shell.core.busy
    assert sum(shell.settled for shell in shells) == COUNT
    seen = sum((shell.seen for shell in shells), Counter())
    assert all(seen[name] for name in ("End", "Run", "Acknowledge", "GiveBack", "part")), seen
