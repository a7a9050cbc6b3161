"""Random flows that are interrupted repeatedly and resumed by other engines.

Three independent sources are checked: the events of the engines, the records in the store and
the journal that the tasks write.
"""

from __future__ import annotations

import contextlib
import json
import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.contract.flows import fated, kinds
from tests.property import replay
from tests.property.lives import Composer, add_controllers, combined
from tests.property.oracle import ATOM, LINEAR, Oracle, Spec
from tests.support.workers import until
from wbengine import exceptions, retry, states, task
from wbengine.persistence import base
from wbengine.testing import ManualClock
from wbengine.types import failure

#: Maximum number of runs of one flow.
MOST_RUNS = 200

ENDS = (states.SUCCESS, states.REVERTED, states.FAILURE)

PLAIN, AWAITED, NUMBERS, MAP, MAP_COLLECTS = "plain", "awaited", "numbers", "map", "map collects"


@dataclass(frozen=True)
class Body:
    """A journal line of a task: its start or its end."""

    name: str
    action: str
    id: str
    attempt: int
    outcome: str

    @property
    def task(self) -> str:
        """Return the name of the task; for an item, of its Map."""
        return self.name.partition("[")[0]


class Tries(retry.Retry):
    """A retry controller that retries a few times, possibly after a wait, and then gives up."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(name, provides=(f"{name}.n", f"{name}.numbers"))
        self.world = world
        self.tries = 1 + int(4 * world.draw(name, "tries"))
        every = world.draw(name, "last") < world.reverting_all
        self.last = retry.REVERT_ALL if every else retry.REVERT
        self.seconds = world.draw(name, "waits") * 60 if world.draw(name, "wait") < 0.6 else 0.0

    def execute(self, history: retry.History) -> tuple[int, list[int]]:
        self.world.tell("retry", self.name, self.world.clock.monotonic())
        count = len(history)
        if self.world.draw(self.name, count) < self.world.failing / 3:
            raise OSError(f"{self.name} fails at {count}")
        return count, list(range(int(5 * self.world.draw(self.name, count, "numbers"))))

    def on_failure(self, history: retry.History) -> retry.Decision:
        answer = retry.RETRY if len(history) < self.tries else self.last
        self.world.tell("event", f"{replay.SAID}{answer}", self.name)
        return answer

    def wait(self, history: retry.History) -> float:
        return self.seconds

    def revert(self, history: retry.History) -> str:
        return f"{self.name} gave up after {len(history)}"


class World:
    """A flow and its events, which depend only on the seed."""

    def __init__(
        self, seed: int, folder: Path, *, troubled: bool = True, pace: float = 0.0
    ) -> None:
        """Create a flow.

        :param troubled: whether faults happen to its engines
        :param pace: maximum duration of a task in seconds
        """
        rng = random.Random(seed)
        composer = Composer(rng)
        composer.left = rng.choice([3, 6, 12])
        self.seed = seed
        self.folder = folder
        self.journal = str(folder / "journal")
        self.spec: Spec = composer.root()
        if composer.shape != "sides":  # this shape already has retry controllers
            add_controllers(self.spec, rng, 0.3)
        self.failing = rng.choice([0.05, 0.15, 0.3, 0.5])
        self.naying = rng.choice([0.2, 0.5])
        self.reverting_all = rng.choice([0, 0.4, 0.8])
        self.defer = rng.random() < 0.5
        self.sticking = rng.choice([0, 0, 0.15])
        #: Event number, counted from the first run -> fault.
        self.troubles = {
            rng.randrange(most): what
            for most, count in [(12, rng.choice([0, 1, 2])), (60, rng.choice([1, 3, 6]))]
            for what in rng.choices(["suspend", "lost"], k=count)
        }
        #: Failure number -> (number of events until the fault, fault): decisions are easily lost.
        self.aftermath = {
            rng.randrange(4): (rng.randrange(4), rng.choice(["suspend", "lost", "lost"]))
            for _ in range(rng.choice([0, 1, 2]))
        }
        if rng.random() < 0.2:
            self.troubles[rng.randrange(25)] = rng.choice(["cancel", "cancel some"])
        #: Deadline of each run in seconds; an event takes one second.
        self.deadline = rng.choice([5.0, 30.0, 60.0, 90.0]) if rng.random() < 0.25 else None
        #: True if the final state depends on the time of a cancellation or on the speed.
        self.given_up = bool({"cancel", "cancel some"} & {*self.troubles.values()})
        self.given_up = self.given_up or self.deadline is not None
        if not troubled:
            self.troubles, self.aftermath, self.deadline = {}, {}, None
        self.clock = ManualClock(1_000_000.0)
        self.store = {
            "seed": seed,
            "failing": self.failing,
            "sticking": self.sticking,
            "folder": "",
            "journal": self.journal,
            "pace": pace,
            "numbers": [0, 1, 2],
        }

    def draw(self, *what: Any) -> float:
        return fated.draw(self.seed, *what)

    def tell(self, *words: Any) -> None:
        fated.note(self.journal, *words)

    def told(self) -> list[list[Any]]:
        with open(self.journal, encoding="utf-8") as stream:
            return [json.loads(line) for line in stream]

    def kind(self, name: str) -> str:
        """Return the kind of an atom's task."""
        number = self.draw(name, "kind")
        for kind, limit in ((MAP, 0.12), (MAP_COLLECTS, 0.2), (AWAITED, 0.4), (NUMBERS, 0.6)):
            if number < limit:
                return kind
        return PLAIN

    def narrow(self, name: str) -> bool:
        """Return True for a Map that runs one item at a time."""
        return self.kind(name) in (MAP, MAP_COLLECTS) and self.draw(name, "narrow") < 0.5

    def flow(self) -> Any:
        """Build the flow, like another process would."""
        return self._build(self.spec, (), "numbers")

    def _build(self, spec: Spec, tries: tuple[str, ...], numbers: str) -> Any:
        """Build a member; `numbers` is the name of the list for Maps."""
        if spec.kind == ATOM:
            return self._task(spec, tries, numbers)
        again = Tries(self, spec.retry) if spec.retry else None
        if spec.retry:
            tries, numbers = (*tries, f"{spec.retry}.n"), f"{spec.retry}.numbers"
        children = []
        for child in spec.children:
            children.append(self._build(child, tries, numbers))
            if spec.kind == LINEAR and child.kind == ATOM and self.kind(child.name) == NUMBERS:
                numbers = f"{child.name}.numbers"
        return combined(spec, again, children, self._decider)

    def _task(self, spec: Spec, tries: tuple[str, ...], numbers: str) -> task.Task:
        kind, made = self.kind(spec.name), (spec.name, "seen")
        inner: task.Task
        if kind in (MAP, MAP_COLLECTS):
            inner = fated.Item(spec.name, requires=tries)
            inner.priority = int(spec.urgent)
            many: Any = {
                "over": numbers,
                "item": "number",
                "max_in_flight": 1 if self.narrow(spec.name) else None,
                "on_item_failure": "collect" if kind == MAP_COLLECTS else "fail",
            }
            return task.Map(inner, provides=spec.name, **many)
        if kind == NUMBERS:
            inner = fated.Numbers(
                spec.name, provides=(*made, f"{spec.name}.numbers"), requires=tries
            )
        elif kind == AWAITED:
            inner = fated.Awaiting(spec.name, provides=made, requires=tries)
        else:
            inner = fated.Fated(spec.name, provides=made, requires=tries)
        inner.priority = int(spec.urgent)
        return inner

    def _decider(self, where: str) -> Callable[..., bool]:
        def decide(history: dict[str, Any]) -> bool:
            # Results depend on the attempts of retry controllers, so that the answers change.
            if self.draw(where, "raises", history) < self.failing / 4:
                self.tell("event", replay.RAISED, where)
                raise KeyError(f"{where} fails")
            agrees = self.draw(where, "no", history) >= self.naying
            self.tell("event", replay.YES if agrees else replay.NO, where)
            return agrees

        return decide


class Life:
    """The runs of one flow on engines of one kind and one store, until the flow ends."""

    def __init__(self, world: World, kind: kinds.Kind, backend: base.Backend) -> None:
        self.world = world
        self.kind = kind
        self.backend = backend
        self.uuid = ""
        self.events = self.failures = 0
        self.lost = self.stopping = False
        #: Errors of the runs.
        self.errors: list[Exception | None] = []
        self.oracle = Oracle(world.spec)
        self.replay = replay.Replay(world.spec, world.defer)
        self.cancelled = False
        #: True if a revert started, and True if a cancellation caused it.
        self.undone = self.undone_by_cancel = False
        self.engine: Any = None

    # -- events

    def run(self) -> Life:
        self._load()
        for number in range(MOST_RUNS):
            self._run_once(number)
            if self.state() in ENDS:
                self._judge()
                return self
            if self.lost or self.world.draw("heir", number) < 0.7:
                self._load()
            self.lost = self.stopping = False
        raise AssertionError("it never ends")

    def _load(self) -> None:
        more: dict[str, Any] = {"store": self.world.store}
        if self.uuid:
            with contextlib.closing(self.backend.get_connection()) as connection:
                more = {"flow_detail": connection.get_flow_details(self.uuid)}
        self.engine = self.kind.load(
            self.world.flow(),
            backend=self.backend,
            defer_reverts=self.world.defer,
            clock=self.world.clock,
            **more,
        )
        self.uuid = self.engine.storage.flow_uuid
        self.engine.atom_notifier.register("*", self._on_atom)

    def _run_once(self, number: int) -> None:
        world = self.world
        finished = self._finished() if number else set()
        # Atoms that ran when an engine died end first, even if the flow is cancelled.
        going_on = {name for name, state in self.saved().items() if state == states.RUNNING}
        if number:
            world.tell("event", replay.RESUMED, "")
        deadline = world.deadline
        due = None if deadline is None else world.clock.monotonic() + deadline
        start = len(world.told()) if number else 0
        error: Exception | None = None
        try:
            self.engine.run(deadline=deadline)
        except Exception as raised:
            error = raised
        self.errors.append(error)
        if self.kind.executor is not None:
            self.kind.executor.taken_over = False
        until(lambda: not under_way(self._bodies()), 30)
        lines = world.told()[start:]
        self._check_twice(finished, lines)
        self._check_told(lines)
        self._check_time(due, going_on, lines)
        if self.lost:
            assert isinstance(error, exceptions.LeaseLost), f"{error!r} although another took over"
        else:
            self._check_bodies(lines)

    def _on_atom(self, state: str, details: dict[str, Any]) -> None:
        world = self.world
        name = details.get("task_name") or details["retry_name"]
        world.tell("event", state, name, world.clock.monotonic())
        world.clock.advance(1)
        if state == states.FAILURE:
            later, what = world.aftermath.get(self.failures, (0, None))
            if what is not None:
                world.troubles[self.events + later] = what
            self.failures += 1
        self.stopping |= state == states.REVERT_FAILURE  # no atom starts after a failed revert
        if state in (states.REVERTING, states.FAILURE) and not self.lost:
            alone = state == states.REVERTING and not self.undone
            self.undone_by_cancel |= self.cancelled and alone
            self.undone = True
        what = world.troubles.get(self.events)
        self.events += 1
        if self.lost or what is None:
            return
        if what == "lost":
            self._take_over()
            world.tell("event", replay.LOST, "")
            self.lost = True
            if self.kind.executor is not None:
                self.kind.executor.taken_over = True
            return
        world.tell("event", replay.SUSPENDED, "")
        self.stopping = True
        if what == "suspend":
            self.engine.suspend()
        else:
            atoms = self.oracle.atoms
            some = [name for name in atoms if world.draw(name, "cancel") < 0.4]
            granted = self.engine.cancel(*(some if what == "cancel some" else ()))
            self.cancelled |= granted

    def _take_over(self) -> None:
        """Acquire the lease for another engine and release it at once."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            lease = connection.get_lease(self.uuid)
            assert lease is not None
            other = connection.acquire_lease(self.uuid, "another engine", 60, dead=lease.epoch)
            connection.release_lease(other)

    # -- state

    def state(self) -> str:
        with contextlib.closing(self.backend.get_connection()) as connection:
            return connection.get_flow_details(self.uuid, lazy=True).state or states.PENDING

    def saved(self) -> dict[str, str]:
        """Return the states of the atoms in the store."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            found = {a.name: a.state for a in connection.get_flow_details(self.uuid)}
        return {name: found.get(name) or states.PENDING for name in self.oracle.atoms}

    def _finished(self) -> set[str]:
        """Return the completed tasks and items, which must not run again."""
        saved, ended = self.saved(), (states.SUCCESS, states.FAILURE)
        found = {name for name, state in saved.items() if state == states.SUCCESS}
        for name, state in self._items().items():
            under = saved[name.partition("[")[0]]
            if under in (states.RUNNING, states.SUCCESS) and state in ended:
                found.add(name)
        return found

    def _items(self) -> dict[str, str]:
        """Return the states of the items of Maps in the store."""
        with contextlib.closing(self.backend.get_connection()) as connection:
            return {
                f"{atom.name}[{item.index}]": item.state
                for atom in connection.get_flow_details(self.uuid)
                if atom.kind == "task"
                for item in atom.items or ()
            }

    def _bodies(self) -> list[Body]:
        return bodies(self.world.told())

    # -- checks

    def _check_twice(self, finished: set[str], lines: list[list[Any]]) -> None:
        """Check that no completed task runs again, unless it was reverted before."""
        for body in bodies(lines):
            if body.action == "revert":
                finished.discard(body.name)
            elif body.outcome == "begun":
                assert body.name not in finished, f"{body.name} was done, and is done again"

    def _check_told(self, lines: list[list[Any]]) -> None:
        """Check that the last reported state of each atom is the saved one, unless it was about to
        start.
        """
        saved = self.saved()
        told = {}
        for words in lines:
            if words[0] == "event" and words[2] in saved:
                told[words[2]] = words[1]
        told = {name: state for name, state in told.items() if state in states.ATOM_STATES}
        for name, state in told.items():
            if self.stopping and (self.lost or (state, saved[name]) in UNTOLD):
                continue
            if self.stopping and self.kind.remote and saved[name] == states.PENDING:
                continue  # the request of the earlier run turned out not to be running
            assert saved[name] == state, f"{name} is {saved[name]}, but {state} was told"

    def _check_time(self, due: float | None, going_on: set[str], lines: list[list[Any]]) -> None:
        """Check that no retry starts and no wait continues after the deadline."""
        if due is None:
            return
        before = due
        for words in lines:
            if words[0] == "retry" and words[1] not in going_on:
                assert words[2] < due + 1, f"{words[1]} runs, although time was up"
            elif words[0] == "event" and len(words) > 3 and self.kind.name == "serial":
                assert words[3] <= max(due, before + 1), f"{words[1:]}: time was up at {due}"
                before = words[3]

    def _check_bodies(self, lines: list[list[Any]]) -> None:
        """Check that the last journal line of each task matches its record; for items, of this run
        only.
        """
        last = {body.name: body for body in self._bodies()}
        for name, state in self.saved().items():
            if name in self.oracle.retry_scope or self.world.kind(name) in (MAP, MAP_COLLECTS):
                continue
            body = last.get(name)
            noted = (body.action, body.outcome) if body else None
            if self.stopping and noted in INTERRUPTED.get(state, ()):
                continue
            if self.stopping and self.kind.remote and (state, noted) in STARTED:
                continue  # a lost run sent it, and a worker starts it only now
            assert noted in NOTED[state], f"{name} is {state}, but noted {noted}"
        items, begun = self._items(), {b.id for b in bodies(lines) if b.outcome == "begun"}
        for name, body in {body.name: body for body in bodies(lines)}.items():
            if "[" in name and body.action == "execute" and body.id in begun:
                if self.stopping and self.kind.remote and items.get(name) == states.PENDING:
                    continue  # a lost run sent it; the next run receives its result
                done = states.SUCCESS if body.outcome == "ended" else states.FAILURE
                assert items.get(name) == done, f"{name} {body.outcome}, but is {items.get(name)}"

    def _judge(self) -> None:
        check_ids(self.world.told(), is_repeated=not self.kind.remote)
        for name in self.oracle.atoms:
            if self.world.narrow(name):
                check_one_at_a_time([b for b in self._bodies() if b.task == name])
        state, saved = self.state(), self.saved()
        if state != states.FAILURE:
            assert not {states.RUNNING, states.REVERTING, states.RETRYING} & set(saved.values())
        events = [(words[1], words[2]) for words in self.world.told() if words[0] == "event"]
        if not self.cancelled and self.world.deadline is None:
            self.replay.run(events)
            if self.replay.complete and not self.lost:
                self.replay.check(saved, state)
        if self.undone_by_cancel and state == states.REVERTED and not self.lost:
            assert self.gave_up, f"{self.errors[-1]!r} is told of what was cancelled"
        if state == states.SUCCESS:
            assert set(saved.values()) <= {states.SUCCESS, states.IGNORE}
        elif state == states.REVERTED and self.gave_up:
            undone = {states.PENDING, states.REVERTED, states.IGNORE}
            assert set(saved.values()) <= undone, f"{saved} is left of what was given up"

    @property
    def comparable(self) -> bool:
        """Return True if the final state must be that of an uninterrupted run.

        This requires that the flow is not cancelled, the decisions are known and timing has no
        effect.
        """
        world = self.world
        fixed = not (world.given_up or world.reverting_all or world.sticking)
        return fixed and self.replay.complete

    @property
    def gave_up(self) -> bool:
        """Return True if the last run ended by a deadline or a cancellation."""
        error = self.errors[-1]
        return isinstance(error, exceptions.DeadlineExceeded | exceptions.Cancelled)

    def end(self) -> dict[str, Any]:
        """Return the values that must not depend on interruptions."""
        storage = self.engine.storage
        found = self.saved()
        if self.state() != states.SUCCESS:
            found = {n: s if s == states.SUCCESS else "undone" for n, s in found.items()}
        return {
            "state": self.state(),
            "states": found,
            "results": {
                k: without_exceptions(v)
                for k, v in storage.fetch_all().items()
                # How many tasks in parallel branches fail before the first failure reverts them
                # depends on timing.
                if k not in ("journal", "pace") and not isinstance(v, failure.Failure)
            },
            "histories": {
                name: list(history.provided_iter())
                for name, history in storage.get_retry_histories()
                if found[name] == states.SUCCESS
            },
            "failures": storage.has_failures(),
        }


def without_exceptions(value: Any) -> Any:
    """Return a result without the exceptions of collected failures, which workers do not send."""
    if isinstance(value, list):
        return [v.to_dict() if isinstance(v, failure.Failure) else v for v in value]
    return value


#: State of a task -> possible last journal lines; a task that fails before its start writes none.
_UNDONE = (None, ("revert", "ended"))
NOTED: dict[str, tuple[tuple[str, str] | None, ...]] = {
    states.PENDING: _UNDONE,
    states.IGNORE: _UNDONE,
    states.REVERTED: _UNDONE,
    states.SUCCESS: (("execute", "ended"),),
    states.FAILURE: (*_UNDONE, ("execute", "failed")),
    states.REVERT_FAILURE: (("revert", "failed"),),
}

#: The same for atoms that were running when their engine died, or were given back.
INTERRUPTED: dict[str, tuple[tuple[str, str] | None, ...]] = {
    states.RUNNING: (*_UNDONE, ("execute", "ended"), ("execute", "failed"), ("revert", "failed")),
    states.SUCCESS: (("revert", "ended"), ("revert", "failed")),
    states.REVERTING: (
        *_UNDONE,
        ("execute", "ended"),
        ("execute", "failed"),
        ("revert", "failed"),
    ),
    states.FAILURE: (("revert", "ended"), ("revert", "failed"), ("execute", "ended")),
}
#: The same for requests of lost runs that wait for a worker until the run is over.
STARTED = {(states.RUNNING, ("execute", "begun")), (states.REVERTING, ("revert", "begun"))}
#: (reported state, saved state): starts that are pending at a suspension are not reported.
UNTOLD = {(states.RETRYING, states.SUCCESS)}


def bodies(lines: list[list[Any]]) -> list[Body]:
    return [Body(*words[1:]) for words in lines if words[0] == fated.BODY]


def under_way(found: list[Body]) -> set[str]:
    """Return the ids of started bodies without an end."""
    left: set[str] = set()
    for body in found:
        (left.add if body.outcome == "begun" else left.discard)(body.id)
    return left


def check_one_at_a_time(found: list[Body]) -> None:
    for place, body in enumerate(found):
        if body.outcome == "begun":
            others = under_way(found[:place])
            assert not others, f"{body.name} begins while another item is under way"


def check_ids(lines: list[list[Any]], *, is_repeated: bool) -> None:
    """Check that no id runs twice or for two bodies, and that attempts of a task increase.

    :param is_repeated: whether a run repeats executions of an earlier run under their ids.
    """
    begun: set[str] = set()
    names: dict[str, str] = {}
    attempts: defaultdict[str, int] = defaultdict(int)
    for line in lines:
        if is_repeated and line[:2] == ["event", replay.RESUMED]:
            begun.clear()
        for body in bodies([line]):
            if body.outcome != "begun":
                continue
            assert body.id not in begun, f"{body.name} runs twice under one id"
            assert names.setdefault(body.id, body.name) == body.name
            begun.add(body.id)
            least = attempts[body.name] + (body.name == body.task)
            assert body.attempt >= least, (
                f"{body.name} has attempt {body.attempt} after {least - 1}"
            )
            attempts[body.name] = body.attempt
