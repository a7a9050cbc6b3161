"""Child flows of a flow: start, cancel, suspend and revert them, and read their ends.

The children of a flow that conductors run, whose job is in the database of the flows, are jobs of
that database. The children of any other flow run in threads of the process that runs their parent;
without a store, their records are in the memory of this process (`ChildMemory`).

The end of a child reaches its parent as a signal, which the store writes together with the end
(`persistence._child_ends`). The signal only wakes the parent: the record of the child contains what
the parent reads.
"""

from __future__ import annotations

import contextlib
import functools
import queue
import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent import futures
from typing import Any, Final, TypeVar

import sqlalchemy as sa

from wbengine import _payloads, _sql, exceptions, signals, states, storage
from wbengine._concurrency import clocks
from wbengine._introspection import object_names
from wbengine._runtime.control import read_given_up
from wbengine._runtime.gates.child_flows import End, Start
from wbengine._runtime.gates.signals_and_sleeps import ReceivedSignals
from wbengine._tasks.child import Child
from wbengine.engines import (
    _flow_errors,
    _flow_factories,
    _loading,
    _ownership,
    _submission,
    base,
)
from wbengine.engines._child_memory import ChildMemory, flow_of
from wbengine.jobs._places import Place
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import _commands, _history, _lease_renewer, models
from wbengine.persistence import base as persistence
from wbengine.persistence.backends import _sql as sql
from wbengine.types import _tags
from wbengine.types import failure as ft

__all__ = ["ChildFlows"]

_T = TypeVar("_T")

#: Maximum number of flows that one transaction starts, or one read returns.
_MAX_FLOWS: Final = 500
#: Maximum number of commands that one transaction sends. It locks the flows and their jobs.
_MAX_COMMANDS: Final = 100
#: Maximum number of children of a flow that run in its process at the same time.
_MAX_THREADS: Final = 32
#: Interval at which the end of a run suspends children in this process that are about to begin.
_SUSPEND_SECONDS: Final = 0.05

_UNFINISHED: Final = tuple(each for each in states.FLOW_STATES if each not in states.FLOW_ENDED)

#: What a command requests, its reason, and its sender; None: the parent.
_Command = tuple[str, str | None, str | None]

_MakeEngine = Callable[[Any, models.FlowDetail, persistence.Backend], base.Engine]


class ChildFlows:
    """The children of one flow, for one run of its engine.

    :param parent: the storage of the flow.
    :param received: receives the ends of children that run in this process, and of those whose
        request to run again was withdrawn.
    :param clock: the clock of the engine.
    :param make_engine: returns an engine for a child that runs in this process.
    :param limit: returns the name of the limit of concurrent flows for which the flow has a permit.
    :param store: the store of the children: that of the flow, or its `ChildMemory`.
    """

    def __init__(
        self,
        parent: storage.Storage,
        received: ReceivedSignals | None,
        clock: clocks.Clock,
        make_engine: _MakeEngine,
        limit: Callable[[], str | None],
        store: persistence.Backend,
    ) -> None:
        self._parent = parent
        self._received = received
        self._limit = limit
        self._clock = clock
        self._by = _commands.by_parent(parent.flow_uuid)
        self._store = store
        self._board = _board_of(parent)
        self._local: _LocalRuns | None = None
        if self._board is None:
            self._local = _LocalRuns(store, received, clock, make_engine)

    @property
    def survive_run(self) -> bool:
        return self._local is None

    def start(self, starts: Sequence[Start]) -> Mapping[str, ft.Failure]:
        failures: dict[str, ft.Failure] = {}
        for part in _parts(starts):
            self._start(part, failures)
        return failures

    def _start(self, starts: Sequence[Start], failures: dict[str, ft.Failure]) -> None:
        stored, commands = self._records_of([start.uuid for start in starts])
        new: list[_submission.NewFlow] = []
        resumed: list[str] = []
        for start in starts:
            flow = stored.get(start.uuid)
            if flow is None:
                try:
                    new.append(self._new_flow(start))
                except exceptions.StorageFailure:
                    raise
                except Exception as error:
                    failures[start.uuid] = ft.Failure.from_exception(error)
            elif self._has_to_continue(flow, commands.get(flow.uuid)):
                resumed.append(flow.uuid)
        self._command(resumed, _commands.RESUME)
        if new:
            self._post(new)
        for start in starts:
            if self._local is not None and start.uuid not in failures:
                self._local.run(start.uuid)

    def _new_flow(self, start: Start) -> _submission.NewFlow:
        task, parent = start.task, self._parent.flow_detail
        tags = _tags.tags_in(parent.own_meta)
        if isinstance(self._store, ChildMemory):
            flow = _flow_of(task)
            engine = _loading.load_without_factory(
                flow, task.inputs, start.uuid, task.flow_name, tags
            )
            self._store.made_flows[start.uuid] = engine.flow
            new = _submission.NewFlow(engine.storage.flow_detail, {}, "")
        else:
            new = _submission.new_flow(
                task.flow,
                inputs=task.inputs,
                tags=tags,
                name=task.flow_name,
                uuid=start.uuid,
                payloads=self._parent.payloads,
                undo_until=parent.meta_value(models.UNDO_UNTIL),
            )
        note: dict[str, Any] = {"flow": parent.uuid, "step": start.step}
        if task.is_detached:
            note["detached"] = True
        if limits := self._limits():
            note["limits"] = limits
        new.detail.meta[models.PARENT] = note
        if (kind := parent.meta_value(models.ENGINE)) is not None and self._local is not None:
            new.detail.meta[models.ENGINE] = kind
        return new

    def _limits(self) -> list[str]:
        """Return the limits for which the flow or a parent of it has a permit."""
        limit = self._limit()
        own = [] if limit is None else [limit]
        return list(dict.fromkeys([*self._parent.flow_detail.inherited_limits, *own]))

    def _post(self, new: Sequence[_submission.NewFlow]) -> None:
        flows = [(each.detail, _submission.new_book(each.detail)) for each in new]
        board = self._board
        if board is None:
            for detail, book in flows:
                persistence.add_flow_detail(detail, book, self._store)
            return
        place, lease = Place.from_dict(self._note), self._parent.writer.lease
        assert lease is not None
        places = [
            place if place.fair_key else place._replace(fair_key=each.fair_key) for each in new
        ]

        def post(connection: persistence.Connection) -> None:
            try:
                board.post_children(flows, places, lease)
            except exceptions.JobFailure as error:
                raise exceptions.StorageFailure(f"{error}") from error

        self._access(post)

    @property
    def _note(self) -> Mapping[str, Any]:
        return self._parent.flow_detail.meta_value(models.SUBMITTED) or {}

    def _has_to_continue(
        self, flow: models.FlowDetail, command: persistence.FlowCommand | None
    ) -> bool:
        """Return whether a flow was interrupted, or suspended because its parent was suspended."""
        if command is not None:
            return command.what == _commands.SUSPEND and command.by == self._by
        if _was_interrupted(flow):
            return True
        why = _history.why_suspended(flow.history) or ""
        return flow.is_suspended_by_command and f"by {self._by}" in why

    def cancel(self, uuids: Collection[str], reason: str) -> Collection[str]:
        return [each for part in _parts(uuids) for each in self._cancel(part, reason)]

    def _cancel(self, uuids: Collection[str], reason: str) -> Collection[str]:
        stored, commands = self._records_of(uuids)
        requests: dict[str, _Command] = {}
        withdrawn: list[str] = []
        for uuid in uuids:
            flow, command = stored.get(uuid), commands.get(uuid)
            if command is None:
                if flow is not None and _was_interrupted(flow):
                    requests[uuid] = _commands.REVERT, reason, None
                elif flow is None or not (flow.is_cancelled and not flow.is_suspended_by_command):
                    requests[uuid] = _commands.CANCEL, reason, None
            elif command.what not in (_commands.CANCEL, _commands.REVERT):
                requests[uuid] = _commands.CANCEL, reason, None
                if flow is not None and flow.state in states.FLOW_ENDED:
                    withdrawn.append(uuid)  # It only withdraws the command to run the flow again.
        # Irreversible tasks do not prevent a cancellation.
        refused = self._command_each(requests, partial=True)
        if withdrawn and self._received is not None:
            for uuid in withdrawn:
                self._received.note_end(uuid)
            self._received.on_new()
        # An end that prevents the cancellation is reported.
        missing = [
            each for each, error in refused.items() if isinstance(error, exceptions.NotFound)
        ]
        if self._local is not None:
            for uuid in uuids:
                if uuid not in refused:
                    self._local.run(uuid)
        return missing

    def _records_of(
        self, uuids: Collection[str]
    ) -> tuple[Mapping[str, models.FlowDetail], Mapping[str, persistence.FlowCommand]]:
        """Return flows and their commands.

        The commands are read first: if an engine carries one out meanwhile, the record shows it.
        """
        commands = self._access(lambda connection: connection.commands(uuids))
        return self._access(lambda connection: connection.flow_records(uuids)), commands

    def revert(self, requests: Mapping[str, str]) -> Mapping[str, End]:
        ends: dict[str, End] = {}
        for part in _parts(requests):
            ends |= self._revert({uuid: requests[uuid] for uuid in part})
        return ends

    def _revert(self, requests: Mapping[str, str]) -> Mapping[str, End]:
        ends: dict[str, End] = {}
        stored, commands = self._records_of(requests)
        to_command: dict[str, _Command] = {}
        for uuid, request in requests.items():
            run_error = self._raise_interruption(uuid)
            mark = f"{self._by}, step {request}"
            command, flow = commands.get(uuid), stored.get(uuid)
            try:
                if flow is None:  # Missing or damaged.
                    flow = self._access(functools.partial(_record, uuid=uuid))
                self._check_successor(flow)
            except exceptions.NotFound:
                ends[uuid] = self._end_of_deleted(uuid)
                continue
            except exceptions.InvalidState as error:
                ends[uuid] = End(states.REVERT_FAILURE, ft.Failure.from_exception(error))
                continue
            if command is not None:
                if command.reruns_flow and run_error is not None:
                    ends[uuid] = End(states.REVERT_FAILURE, ft.Failure.from_exception(run_error))
                continue
            was_requested = any(mark in (change.why or "") for change in flow.history)
            end = self._end_of_reversion(flow, mark, was_requested)
            if end is not None:
                ends[uuid] = end
            elif not was_requested or flow.state in states.FLOW_ENDED:
                to_command[uuid] = _commands.REVERT, None, mark
        # Irreversible tasks do not prevent the reversion of a parent that failed.
        partial = self._is_partial or not self._parent.flow_detail.is_undone
        for uuid, refused in self._command_each(to_command, partial=partial).items():
            if isinstance(refused, exceptions.NotFound):
                ends[uuid] = self._end_of_deleted(uuid)
            else:
                ends[uuid] = End(states.REVERT_FAILURE, ft.Failure.from_exception(refused))
        if self._local is not None:
            for uuid in requests.keys() - ends.keys():
                self._local.run(uuid)
        return ends

    def _end_of_reversion(
        self, flow: models.FlowDetail, mark: str, was_requested: bool
    ) -> End | None:
        """Return the end of a reversion without a pending command, or None before its end."""
        if flow.state == states.REVERTED:
            return End(states.REVERTED, None)
        request = _commands.FlowCommand(_commands.REVERT, by=mark)
        if (refusal := request.refusal_in(flow.history)) is not None:
            refused = exceptions.InvalidState(refusal)
            return End(states.REVERT_FAILURE, ft.Failure.from_exception(refused))
        if was_requested and flow.state == states.FAILURE and not _was_interrupted(flow):
            return self._failed_revert(flow.uuid)
        return None

    @property
    def _is_partial(self) -> bool:
        return self._parent.flow_detail.meta_value(models.PARTIAL) is True

    def _end_of_deleted(self, uuid: str) -> End:
        if self._is_partial:
            return End(states.REVERTED, None)
        return _deleted(uuid, "it cannot be reverted")

    def _check_successor(self, flow: models.FlowDetail) -> None:
        """Check that no fork owns results of a child that are not reverted.

        :raises InvalidState: if one does.
        """
        uuid = flow.successor
        if uuid is None:
            return
        try:
            fork = self._access(lambda connection: connection.get_flow_details(uuid, lazy=True))
        except exceptions.NotFound:
            raise exceptions.InvalidState(
                f"Child flow {flow.uuid} was superseded by its fork {uuid}, which was deleted: its"
                " results cannot be reverted"
            ) from None
        if fork.state != states.REVERTED:
            raise exceptions.InvalidState(
                f"Child flow {flow.uuid} was superseded by its fork {uuid}, which is in"
                f" {fork.state or states.PENDING}: revert or cancel the fork first, with wbengine"
                f" flow revert {uuid}"
            )
        self._check_successor(fork)

    def _failed_revert(self, uuid: str) -> End:
        flow = self._access(lambda connection: connection.get_flow_details(uuid))
        failures = list(storage.Storage(flow).get_revert_failures().values())
        failure = failures[0] if len(failures) == 1 else _failure_of(flow)
        return End(flow.state or states.PENDING, failure)

    def ends_of(self, tasks: Mapping[str, Child]) -> Mapping[str, End]:
        ends: dict[str, End] = {}
        for part in _parts(tasks):
            errors = {uuid: self._raise_interruption(uuid) for uuid in part}
            for uuid in part:
                if tasks[uuid].flow is not None:
                    _flow_of(tasks[uuid], is_made=False)  # Its module defines the types of values.
            flows, commands = self._together(functools.partial(_ended_flows, uuids=part))
            for uuid in part:
                end = self._end_of(
                    uuid, tasks[uuid], flows.get(uuid), commands.get(uuid), errors[uuid]
                )
                if end is not None:
                    ends[uuid] = end
        return ends

    def _end_of(
        self,
        uuid: str,
        task: Child,
        flow: models.FlowDetail | None,
        command: persistence.FlowCommand | None,
        error: Exception | None,
    ) -> End | None:
        if flow is None:
            return _deleted(uuid, "its result is lost")
        is_requested = command is not None and command.reruns_flow
        if flow.state not in states.FLOW_ENDED or is_requested:
            if error is None:
                return None
            return End(flow.state or states.PENDING, ft.Failure.from_exception(error))
        if _was_interrupted(flow):
            return None
        if flow.state != states.SUCCESS:
            return End(flow.state or states.PENDING, _failure_of(flow))
        try:
            value = self._value_of(flow, task)
        except exceptions.StorageFailure:
            raise
        except Exception as value_error:
            return End(states.SUCCESS, ft.Failure.from_exception(value_error))
        return End(states.SUCCESS, value)

    def _raise_interruption(self, uuid: str) -> Exception | None:
        """Raise what ended a run here and also ends that of the parent; return another error.

        A later run continues both flows.

        :raises StorageFailure: if the store failed.
        :raises BaseException: if a task was interrupted, for example by `SystemExit`.
        """
        error = None if self._local is None else self._local.errors.get(uuid)
        if isinstance(error, exceptions.StorageFailure) or not isinstance(error, Exception | None):
            raise error
        return error

    def _value_of(self, detail: models.FlowDetail, task: Child) -> Any:
        """Return the result of a workflow, or all values of another flow by name."""
        if task.flow is None:  # The workflow of the step has ended and needs no result.
            return None
        flow, payloads = _flow_of(task), self._store.payloads
        if _is_workflow(flow):
            where = "result of the child flow"
            return _payloads.loaded(payloads, _loading.result_of(detail), where)
        engine = _loading.load(flow, flow_detail=detail)
        engine.prepare()
        engine.storage.payloads = payloads
        return engine.storage.fetch_all()

    def suspend(self) -> None:
        """Suspend all children that have not ended, except detached ones."""
        if self._board is None:
            return  # They end with the run of their parent.
        after: str | None = None
        while True:
            read = functools.partial(_page, parent=self._parent.flow_uuid, after=after)
            uuids, after = self._access(read)
            # Refused for a flow that has ended, or is about to be cancelled, or was deleted.
            self._command_each(dict.fromkeys(uuids, (_commands.SUSPEND, None, None)))
            if after is None:
                return

    def close(self) -> None:
        if self._local is not None:
            self._local.close()

    def _command(self, uuids: Iterable[str], what: str) -> None:
        """Send a command to flows.

        :raises InvalidState, NotFound: if one is refused.
        """
        refused = self._command_each(dict.fromkeys(uuids, (what, None, None)))
        if refused:
            raise next(iter(refused.values()))

    def _command_each(
        self, requests: Mapping[str, _Command], *, partial: bool = False
    ) -> dict[str, exceptions.InvalidState | exceptions.NotFound]:
        """Send commands to flows, `_MAX_COMMANDS` at a time; return why some are refused."""
        refused: dict[str, exceptions.InvalidState | exceptions.NotFound] = {}
        at, pending = self._clock.time(), list(requests.items())
        for first in range(0, len(pending), _MAX_COMMANDS):
            commands = {
                uuid: _commands.FlowCommand(what, reason, by or self._by, at, partial=partial)
                for uuid, (what, reason, by) in pending[first : first + _MAX_COMMANDS]
            }
            refused |= self._together(functools.partial(_send, commands=commands), write=True)
            for uuid in commands.keys() - refused.keys():
                _lease_renewer.of_process().poll_now(uuid)
        return refused

    def _together(self, do: Callable[[persistence.Connection], _T], *, write: bool = False) -> _T:
        """Call `do` with a connection whose calls are one transaction if the children are jobs."""
        if self._board is None:
            return self._access(do)
        store = self._parent.backend
        assert isinstance(store, sql.SQLBackend)

        def work(transaction: sa.Connection) -> _T:
            return do(store.in_transaction(transaction).get_connection())

        def attempt(_: persistence.Connection) -> _T:
            return _sql.transact(store.engine, "Accessing child flows", work, write=write)

        return self._access(attempt)

    def _access(self, do: Callable[[persistence.Connection], _T]) -> _T:
        if self._parent.backend is not None:
            return self._parent.writer.attempt(do)
        with contextlib.closing(self._store.get_connection()) as connection:
            return do(connection)


class _LocalRuns:
    """Runs of child flows in threads of this process.

    :ivar errors: errors that prevented a run from reaching an end of its flow, by uuid.
    """

    def __init__(
        self,
        store: persistence.Backend,
        received: ReceivedSignals | None,
        clock: clocks.Clock,
        make_engine: _MakeEngine,
    ) -> None:
        self._store = store
        self._received = received
        self._clock = clock
        self._make_engine = make_engine
        self._lock = threading.Lock()
        self._pool: futures.ThreadPoolExecutor | None = None
        self._running: dict[str, futures.Future[None]] = {}
        self._engines: dict[str, base.Engine] = {}
        # Flows for which `run` was called while they ran.
        self._requested: set[str] = set()
        self._is_closing = False
        self.errors: dict[str, BaseException] = {}

    def run(self, uuid: str) -> None:
        """Run a flow until it ends or is suspended; if it runs here, run it again after that.

        The present run may be over: it would not read a command that was sent before this call.
        """
        with self._lock:
            if self._is_closing:
                return
            if uuid in self._running:
                self._requested.add(uuid)
                return
            self._requested.discard(uuid)
            self.errors.pop(uuid, None)
            if self._pool is None:
                self._pool = futures.ThreadPoolExecutor(_MAX_THREADS, "wbengine-child")
            # Until the engine has attached itself, the clock must not advance.
            events: queue.SimpleQueue[Any] = queue.SimpleQueue()
            self._clock.attach(events, _always)
            future = self._running[uuid] = self._pool.submit(self._run, uuid, events)
        # Also if `close` cancels it.
        future.add_done_callback(lambda _: self._clock.detach(events))

    def _run(self, uuid: str, events: queue.SimpleQueue[Any]) -> None:
        has_ended, run_error = False, None
        try:
            engine = self._make(uuid)
            for state in () if engine is None else engine.run_iter():
                has_ended = state in states.FLOW_ENDED
                if has_ended or state == states.SUSPENDED:
                    self._clock.attach(events, _always)
                else:
                    self._clock.detach(events)
        except (exceptions.FlowBusy, _ownership.StateRefused):
            pass  # Another process has ended it, or `close` ended the wait for its owner.
        except BaseException as error:
            run_error = error
        with self._lock:
            self._engines.pop(uuid, None)
            self._running.pop(uuid, None)
        self._report(uuid, has_ended, run_error)
        if uuid in self._requested and uuid not in self.errors:
            self.run(uuid)

    def _make(self, uuid: str) -> base.Engine | None:
        """Return a new engine for a flow, or None if `close` was called."""
        with contextlib.closing(self._store.get_connection()) as connection:
            detail = _loading.read_flow_detail(connection, uuid)
        engine = self._make_engine(flow_of(detail, self._store), detail, self._store)
        engine.keeps_suspended, engine.check_state = True, _check_not_ended
        with self._lock:
            if self._is_closing:
                return None
            self._engines[uuid] = engine
        return engine

    def _report(self, uuid: str, has_ended: bool, error: BaseException | None) -> None:
        """Report the end of a flow that no store reports to its parent, or the error of its run.

        :param has_ended: whether the run has ended the flow. The error is then that of the flow.
        """
        if self._received is None:
            return
        with contextlib.suppress(exceptions.StorageFailure, exceptions.NotFound):
            with contextlib.closing(self._store.get_connection()) as connection:
                is_requested = bool(connection.commands([uuid]))
                flow = connection.get_flow_details(uuid, lazy=True)
            if flow.state in states.FLOW_ENDED:
                if has_ended or not is_requested:  # Otherwise the requested run cannot begin.
                    error = None
                self._received.add([signals.end_of_child(uuid, flow.epoch, self._clock.time())])
        if error is not None:
            self.errors[uuid] = error
            self._received.note_end(uuid)
            self._received.on_new()

    def close(self) -> None:
        """Suspend all runs and wait for their ends."""
        with self._lock:
            self._is_closing = True
            pool, running = self._pool, set(self._running.values())
        if pool is None:
            return
        pool.shutdown(wait=False, cancel_futures=True)
        # Repeated, because it has no effect on an engine whose run has not begun.
        while running:
            for engine in self._current_engines():
                with contextlib.suppress(exceptions.InvalidState):
                    engine.suspend()
            futures.wait(running, _SUSPEND_SECONDS)
            running = {future for future in running if not future.done()}

    def _current_engines(self) -> Collection[base.Engine]:
        with self._lock:
            return list(self._engines.values())


def _parts(values: Iterable[_T]) -> Iterator[list[_T]]:
    every = list(values)
    return (every[first : first + _MAX_FLOWS] for first in range(0, len(every), _MAX_FLOWS))


def _record(connection: persistence.Connection, uuid: str) -> models.FlowDetail:
    return connection.get_flow_details(uuid, lazy=True)


def _send(
    connection: persistence.Connection, commands: Mapping[str, persistence.FlowCommand]
) -> dict[str, exceptions.InvalidState | exceptions.NotFound]:
    """Send commands to flows; return why some are refused."""
    refused: dict[str, exceptions.InvalidState | exceptions.NotFound] = {}
    for uuid in sorted(commands):  # Two senders lock flows in the same order.
        try:
            connection.send_command(uuid, commands[uuid])
        except (exceptions.InvalidState, exceptions.NotFound) as error:
            refused[uuid] = error
    return refused


def _ended_flows(
    connection: persistence.Connection, uuids: Collection[str]
) -> tuple[dict[str, models.FlowDetail], Mapping[str, persistence.FlowCommand]]:
    """Return flows with their records, except deleted ones, and their commands."""
    flows: dict[str, models.FlowDetail] = {}
    for uuid in uuids:
        with contextlib.suppress(exceptions.NotFound):
            flows[uuid] = connection.get_flow_details(uuid)
    return flows, connection.commands(uuids)


def _page(
    connection: persistence.Connection, parent: str, after: str | None
) -> tuple[list[str], str | None]:
    """Return the flows of a page that have to be suspended, and the next position."""
    page = connection.list_flows(states=_UNFINISHED, parent=parent, limit=_MAX_FLOWS, after=after)
    uuids = [row.uuid for row in page.flows]
    records, commands = connection.flow_records(uuids), connection.commands(uuids)
    continuing = [
        uuid
        for uuid, flow in records.items()
        if not flow.is_detached and (uuid in commands or not flow.is_suspended_by_command)
    ]
    return continuing, page.after


def _board_of(parent: storage.Storage) -> impl_sql.SQLJobBoard | None:
    """Return the board of a flow that was submitted to its own database, or None."""
    note = parent.flow_detail.meta_value(models.SUBMITTED)
    if not isinstance(parent.backend, sql.SQLBackend):
        return None
    if not isinstance(note, Mapping) or "namespace" not in note or "at" in note:
        return None
    options = {"namespace": note["namespace"]}
    board = impl_sql.SQLJobBoard("children", options, persistence=parent.backend)
    board.connect()
    return board


def _flow_of(task: Child, *, is_made: bool = True) -> Any:
    flow = task.flow
    if isinstance(flow, str):
        flow = object_names.load(flow)
    if not is_made or _is_workflow(flow) or _flow_factories.is_flow(flow):
        return flow
    return flow()


def _is_workflow(flow: Any) -> bool:
    return _flow_factories.is_workflow(flow)


def _was_interrupted(flow: models.FlowDetail) -> bool:
    """Return whether the latest run ended because the store failed: another run continues."""
    errors = flow.history[-1].errors if flow.history else None
    return flow.state == states.FAILURE and errors == exceptions.StorageFailure.__name__


def _failure_of(flow: models.FlowDetail) -> ft.Failure:
    """Return the failure of a flow that ended without success."""
    stored = storage.Storage(flow)
    failures = list(stored.get_execute_failures().values())
    is_given_up = read_given_up(flow.own_meta) is not None
    if len(failures) == 1 and not (is_given_up or stored.get_revert_failures()):
        return failures[0]
    try:
        _flow_errors.raise_recorded(stored)
    except Exception as error:
        return ft.Failure.from_exception(error)


def _deleted(uuid: str, consequence: str) -> End:
    error = exceptions.FlowDeleted(f"Child flow {uuid} was deleted: {consequence}")
    return End(states.UNDEFINED, ft.Failure.from_exception(error))


def _check_not_ended(state: str) -> None:
    if state in states.FLOW_ENDED:
        raise _ownership.StateRefused(f"it has already ended in {state}")


def _always() -> bool:
    return True
