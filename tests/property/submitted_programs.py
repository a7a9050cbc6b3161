"""Random programs that conductors run: parents with children, forks and reverts of both.

All effects are lines of a file, so that the process that produces them can be killed. An effect
exists if it was done and not undone; it belongs to the outermost flow that did it.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import signal
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tests.crashing import children as processes
from tests.property import workflow_programs as programs
from tests.support import fork_flows
from tests.support.killed import is_killed
from tests.support.workers import worker_in_thread
from wbengine import engines, operations, states
from wbengine.conductors.backends import impl_blocking
from wbengine.jobs import base as jobs
from wbengine.jobs._places import ALL_QUEUES
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import backends, base, models
from wbengine.persistence._step_notes import StepNote

#: An effect that exists: its key, and the uuid of the outermost flow that did it.
Effect = tuple[str, str]

#: Seconds until flows have to end.
_PATIENCE = 20.0


class Conductor(impl_blocking.BlockingConductor):
    """Ends when no job can be claimed."""

    CLAIM_SECONDS = 0.5

    def _sleep(self, seconds: float) -> None:
        self.stop()


class Action(NamedTuple):
    """What happens to a flow that has ended.

    :ivar start: number that determines the step from which it is forked.
    :ivar how: 'plain', 'own' or 'undo'.
    :ivar is_fork_first: whether the fork is reverted before the original flow.
    """

    start: int
    how: str
    is_fork_first: bool


class Stage:
    """A store with a board, and the engines that run programs.

    :param url: a store that survives a process, or `memory://`.
    :param engine: `serial`, or `worker-based` with a worker in the process of the engine.
    """

    def __init__(self, url: str, folder: Path, engine: str) -> None:
        self.url, self.folder, self.engine = url, folder, engine
        #: The file of the effects of all programs.
        self.journal = folder / "effects"
        self.journal.touch()
        self._options: dict[str, Any] = {}
        self._memory = backends.fetch(url) if url.startswith("memory:") else None

    @property
    def can_be_killed(self) -> bool:
        return self._memory is None

    @contextlib.contextmanager
    def opened(self) -> Iterator[tuple[base.Backend, jobs.JobBoard]]:
        with contextlib.ExitStack() as stack:
            store = self._memory or stack.enter_context(backends.backend(self.url))
            yield store, stack.enter_context(fork_flows.board_of(store))

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Run a worker if the engines need one. It survives the kills of engines."""
        if self.engine != "worker-based":
            yield
            return
        tasks = [*programs.TASKS.values(), programs.observe, programs.Send]
        if self._memory is not None:
            url = "memory://programs"
            with worker_in_thread(url, *tasks, topic="programs"):
                self._options = {"url": url, "topics": ["programs"]}
                yield
            return
        url = f"filesystem://{self.folder}/broker"
        context = multiprocessing.get_context("fork")
        worker = context.Process(target=self._work, args=(url, tasks), daemon=True)
        worker.start()
        self._options = {"url": url, "topics": ["programs"]}
        try:
            yield
        finally:
            worker.kill()
            worker.join()

    def _work(self, url: str, tasks: list[Any]) -> None:
        with backends.backend(self.url) as store, worker_in_thread(url, *tasks, topic="programs"):
            self._prepare(store)
            signal.pause()

    def _prepare(self, store: base.Backend) -> None:
        programs.SEND[:] = [lambda *words: _send(store, *words)]
        programs.JOURNAL[:] = [self.journal]

    def lines(self) -> list[tuple[str, str, str]]:
        """Return what happened: what, the key, and the flow."""
        words = map(str.split, self.journal.read_text(encoding="utf-8").splitlines())
        return [(what, key, flow) for what, key, flow in words]

    def finish(self, *uuids: str) -> None:
        """Run conductors until these flows have ended."""
        with self.opened() as (store, board):
            self._prepare(store)
            if isinstance(board, impl_sql.SQLJobBoard):
                board.queues = (ALL_QUEUES,)

            def unfinished() -> list[str]:
                with contextlib.closing(store.get_connection()) as connection:
                    rows = connection.flow_records(uuids)
                    pending = connection.commands(uuids)
                return [
                    uuid
                    for uuid in uuids
                    if uuid in pending or rows[uuid].state not in states.FLOW_ENDED
                ]

            def is_over() -> bool:
                Conductor("c", board, store, self.engine, self._options).run()
                return not unfinished()

            if self._memory is not None:
                # `ConductorService` posts missing jobs of separate boards.
                for uuid in unfinished():
                    book = models.LogBook("program")
                    board.post("program", book, {"flow_uuid": uuid})
            processes.until(is_over, _PATIENCE, "the flows do not end")


def _send(store: base.Backend, uuid: str, channel: str, number: int) -> None:
    """Send the signal with this number, unless a step before a kill has sent it."""
    with contextlib.closing(store.get_connection()) as connection:
        stored = connection.signals([uuid]).get(uuid, ())
    if number > sum(each.name == channel for each in stored):
        operations.signal(store, uuid, channel, number)


def path_of(flow: models.FlowDetail) -> str:
    """Return the start of the keys of a program."""
    inputs = next(record for record in flow if record.name == models.INJECTOR).results
    return str(inputs["program"]["path"])


def positions(connection: base.Connection, flow: models.FlowDetail) -> dict[str, int]:
    """Return the positions of the steps of a flow by key; that of a child is its path."""
    found: dict[str, int] = {}
    for record in flow:
        note = StepNote.of(record)
        if note is None:
            continue
        child = record.meta_value(models.CHILD)
        if child is not None:
            found[path_of(connection.get_flow_details(child))] = note.position
        elif note.arguments and "key" in note.arguments:
            found[note.arguments["key"]] = note.position
    return found


class Case:
    """A program with its model, and its flow in a stage."""

    def __init__(self, stage: Stage, program: Any, workflow: str) -> None:
        self.stage = stage
        self._first_line = len(self.stage.lines())
        self.model = programs.Model()
        self.model.execute(program)
        self.workflow = workflow
        self.program = program
        self.fork: str | None = None
        #: Owners of the results that the fork inherited, by key.
        self.inherited: dict[str, str] = {}
        #: Positions of the steps of the original flow, and the first that the fork executes.
        self.places: dict[str, int] = {}
        self.start = 0
        with stage.opened() as (store, board):
            given = {"program": programs.program_of(program)}
            flow = programs.WORKFLOWS[workflow]
            self.uuid = engines.submit(flow, inputs=given, backend=store, board=board).id
            for channel in self.model.channels:
                for number in range(self.model.initial(channel)):
                    operations.signal(store, self.uuid, channel, number + 1)

    def _run(self, do: Any, kill: int | None) -> None:
        """Call a function, and call it again if it is killed."""
        if kill is None:
            do()
        elif is_killed(kill, do):
            with self.stage.opened() as (store, _):
                fork_flows.expire_claims(store)
            assert not is_killed(0, do)

    # What happens.

    def run(self, kill: int | None = None) -> None:
        self._run(lambda: self.stage.finish(self.uuid), kill)
        self.check(self.expected_run())
        with self.stage.opened() as (store, board):
            flow = self.detail(store, self.uuid)
            if self.model.error is None:
                handle = engines.handle(flow.uuid, backend=store, board=board)
                result = handle.value(timeout=0)
                assert result == self.model.result
            assert flow.state == (states.REVERTED if self.model.error else states.SUCCESS)

    def fork_and_run(self, action: Action, kill: int | None = None) -> bool:
        """Fork the flow, and run the fork. Return False if it has no steps."""
        with self.stage.opened() as (store, _):
            flow = self.detail(store, self.uuid)
            steps = [record for record in flow if record.is_step]
            if not steps:
                return False
            with contextlib.closing(store.get_connection()) as connection:
                self.places = positions(connection, flow)
        notes = [note for record in steps if (note := StepNote.of(record)) is not None]
        completed = {note.position for note in notes if note.completed is not None}
        position = str(action.start % len(steps))

        def do() -> None:
            with self.stage.opened() as (store, _):
                forks = self.detail(store, self.uuid).forks
                if forks:
                    uuid = forks[0]["flow"]
                else:
                    options: Any = {} if action.how == "plain" else {action.how: True}
                    uuid = operations.fork(store, self.uuid, position, **options).uuid
                for channel, count in self._sent_before(self.detail(store, uuid)).items():
                    for number in range(count):
                        _send(store, uuid, channel, number + 1)
            if action.how == "undo":
                self.stage.finish(self.uuid)
            self.stage.finish(uuid)

        self._run(do, kill)
        with self.stage.opened() as (store, board):
            (entry,) = self.detail(store, self.uuid).forks
            self.fork = entry["flow"]
            assert self.fork is not None
            fork = self.detail(store, self.fork)
            self._read_inherited(fork, int(position), completed)
            if self.model.error is None:
                assert fork.state == states.SUCCESS, fork.history
                handle = engines.handle(self.fork, backend=store, board=board)
                result = handle.value(timeout=0)
                assert result == self.model.result
            else:
                assert fork.state == states.REVERTED
        self.check(self.expected_fork(action))
        return True

    def _sent_before(self, fork: models.FlowDetail) -> dict[str, int]:
        """Return the numbers of signals that the fork does not send itself, by channel.

        It has only those that inherited steps received.
        """
        counts = {channel: self.model.initial(channel) for channel in self.model.channels}
        for record in fork:
            continued = record.meta_value(models.CONTINUED)
            if continued is not None:
                for channel, number in continued["inputs"]["program"]["sent"].items():
                    initial = 0 if channel.endswith(".other") else self.model.initial(channel)
                    counts[channel] = max(counts.get(channel, 0), initial + number)
            note = StepNote.of(record)
            if note is not None and note.task.endswith(":Send") and note.completed is not None:
                channel, number = record.results
                counts[channel] = max(counts.get(channel, 0), number)
        return counts

    def _read_inherited(self, fork: models.FlowDetail, position: int, completed: set[int]) -> None:
        """Read what the fork inherited: it has to be all complete steps before the position.

        :param completed: positions of the complete steps of the original flow.
        """
        notes = [
            note
            for record in fork
            if record.meta_value(models.INHERITED) is not None
            and (note := StepNote.of(record)) is not None
        ]
        self.start = max((note.position + 1 for note in notes), default=0)
        assert self.start <= position
        has_undone = "scope" in set(programs.kinds(self.program)) or self.model.error is not None
        missing = completed.intersection(range(self.start, position))
        assert not missing or has_undone, (missing, self.start, position)

    def revert(self, uuid: str, expected: set[Effect], kill: int | None = None) -> None:
        before = len(self.lines())

        def do() -> None:
            with self.stage.opened() as (store, _):
                if self.detail(store, uuid).state == states.SUCCESS:
                    operations.request(store, uuid, "revert")
            self.stage.finish(uuid)

        self._run(do, kill)
        with self.stage.opened() as (store, _):
            assert self.detail(store, uuid).state == states.REVERTED
        self.check(expected)
        if kill is None:
            self._check_order(uuid, self.lines()[before:])

    def revert_all(self, action: Action, kill: int | None = None) -> None:
        """Revert the fork and the original flow."""
        assert self.fork is not None
        if action.how == "undo":
            self.revert(self.fork, self.final(), kill)
            return
        both = self.expected_fork(action)
        owned = {
            key: self.fork if action.how == "own" and not self._is_after(key) else owner
            for key, owner in both
            if owner == self.uuid
        }
        of_fork = {
            (key, owner) for key, owner in both if owner == self.fork or owned[key] == self.fork
        }
        final = self.final()
        if action.is_fork_first:
            self.revert(self.fork, (both - of_fork) | final, kill)
            self.revert(self.uuid, final, kill)
        else:
            self.revert(self.uuid, of_fork | final, kill)
            self.revert(self.fork, final, kill)

    # What has to exist.

    def existing_keys(self) -> set[str]:
        """Return the keys of the effects that remain after a run."""
        existing = set()
        for what, key in self.model.effects:
            if what == "do":
                existing.add(key)
            elif what != "note":
                existing.discard(key)
        return existing

    def expected_run(self) -> set[Effect]:
        return {(key, self.uuid) for key in self.existing_keys()}

    def expected_fork(self, action: Action) -> set[Effect]:
        """Return the effects that exist after a fork of a flow that has ended."""
        assert self.fork is not None
        keys = self.existing_keys()
        again = {(key, self.fork) for key in keys if self._is_after(key)}
        original = self.expected_run()
        if action.how == "undo":
            original = {
                (key, owner)
                for key, owner in original
                if not self._is_after(key) or self.model.is_final(key)
            }
        return original | again

    def final(self) -> set[Effect]:
        assert self.fork is not None
        keys = [key for key in self.existing_keys() if self.model.is_final(key)]
        again = {(key, self.fork) for key in keys if self._is_after(key)}
        return {(key, self.uuid) for key in keys} | again

    def _is_after(self, key: str) -> bool:
        """Return whether the fork executes a step again; not if it is final."""
        places = [at for path, at in self.places.items() if programs.is_within(key, path)]
        return bool(places) and max(places) >= self.start

    # What exists.

    def lines(self) -> list[tuple[str, str, str]]:
        return self.stage.lines()[self._first_line :]

    def check(self, expected: set[Effect]) -> None:
        lines = self.lines()
        roots = self._roots({flow for _, _, flow in lines})
        existing: set[Effect] = set()
        for what, key, flow in lines:
            root = roots[flow]
            if what == "do":
                existing.add((key, root))
            elif what != "note":
                # A fork can undo what it inherited.
                is_inherited = root == self.fork and not self._is_after(key)
                existing.discard((key, self.uuid if is_inherited else root))
        existing = {each for each in existing if not self.model.is_left(each[0])}
        expected = {each for each in expected if not self.model.is_left(each[0])}
        assert existing == expected, self._names(existing ^ expected)

    def _names(self, effects: set[Effect]) -> Any:
        names = {self.uuid: "original", self.fork: "fork"}
        return sorted((key, names[owner]) for key, owner in effects), self.places, self.start

    def _roots(self, uuids: set[str]) -> Mapping[str, str]:
        """Return the outermost flows of these flows, which are their parents' parents."""
        roots = {}
        with (
            self.stage.opened() as (store, _),
            contextlib.closing(store.get_connection()) as connection,
        ):
            for uuid in uuids:
                root: str = uuid
                while (parent := connection.flow_records([root])[root].parent) is not None:
                    root = parent
                roots[uuid] = root
        return roots

    def check_each_once(self) -> None:
        """Check that no step ran more often than in the model. Only without kills."""
        roots = self._roots({flow for _, _, flow in self.lines()})
        found = Counter((key, roots[flow]) for what, key, flow in self.lines() if what == "do")
        allowed = Counter(key for what, key in self.model.effects if what == "do")
        more = {
            each: count
            for each, count in found.items()
            if count > allowed[each[0]] and not self.model.is_left(each[0])
        }
        assert not more

    def _check_order(self, uuid: str, lines: list[tuple[str, str, str]]) -> None:
        """Check that the latest completion was undone first, unless a part was undone alone."""
        if self.model.failed or not {"scope", "abandon"}.isdisjoint(programs.kinds(self.program)):
            return
        with (
            self.stage.opened() as (store, _),
            contextlib.closing(store.get_connection()) as connection,
        ):
            completed = completions(connection, uuid)
        undone = [completed[key] for what, key, _ in lines if what in ("undo", "untry")]
        assert undone == sorted(undone, reverse=True)

    @staticmethod
    def detail(store: base.Backend, uuid: str) -> models.FlowDetail:
        with contextlib.closing(store.get_connection()) as connection:
            return connection.get_flow_details(uuid)


def completions(connection: base.Connection, uuid: str) -> dict[str, tuple[int, ...]]:
    """Return the numbers of the completions of steps, after those of the children they are in."""
    found: dict[str, tuple[int, ...]] = {}
    for record in connection.get_flow_details(uuid):
        note = StepNote.of(record)
        if note is None or note.completed is None:
            continue
        child = record.meta_value(models.CHILD)
        if child is not None:
            nested = completions(connection, child)
            found |= {key: (note.completed, *numbers) for key, numbers in nested.items()}
        elif note.arguments and "key" in note.arguments:
            found[note.arguments["key"]] = (note.completed,)
    return found
