"""One atom begins, or comes to its end: what is stored of it, and who is told.

The machine decides which atom and when; an executor runs it; between the two stands this module.
It marks records (the machine flushes them) and collects notices (the machine delivers them once
what they tell is written).  Only the engine's thread calls it, except for what running tasks tell
(`_local_event`, `_remote_event`).
"""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, NamedTuple

import futurist

from wbengine import arguments, deciders, exceptions, states
from wbengine import invocation as calls
from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine import task as task_module
from wbengine._core import plan as plan_module
from wbengine.persistence import models
from wbengine.types import failure as ft
from wbengine.types import notifier as notifier_module

__all__ = ["Call", "Lifecycle", "RetryCall"]

LOG: Final = logging.getLogger(__name__)

_NO_RESULT: Final = arguments.MISSING


class RetryCall(NamedTuple):
    """A retry about to execute or to be reverted, in the engine's own thread."""

    node: int
    retry: retry_module.Retry
    action: calls.Action


#: What is in flight: a task's invocation, or a retry's call.
Call = calls.Invocation | RetryCall


class _Notice(NamedTuple):
    """A change of state to be told: once it is written, and in the order it happened."""

    record: models.AtomDetail
    atom: Any
    state: str
    old_state: str | None
    result: Any
    worker: str | None
    started: float | None
    ended: float | None


class Lifecycle:
    """Begins and finishes atoms of one plan on one storage.

    `in_process`: the executor runs tasks here, so their own notifiers hear them directly.
    `touched` is called (from any thread) when a running task told something that should be
    written soon.
    """

    def __init__(
        self,
        plan: plan_module.Plan,
        storage: storage_module.Storage,
        notifier: notifier_module.Notifier,
        *,
        in_process: bool,
        touched: Callable[[], None],
    ) -> None:
        self._plan = plan
        self._storage = storage
        self._notifier = notifier
        self._touched = touched
        self._kept = storage.backend is not None
        self._in_process = in_process
        self._retries = futurist.SynchronousExecutor()
        self._flow_uuid = storage.flow_uuid
        self._notices: list[_Notice] = []
        self._listening = False
        #: Atoms that fail as soon as they begin, because their deciders could not be asked.
        self._doomed: dict[int, ft.Failure] = {}
        #: Calls that ended before they could be submitted.
        self.stillborn: list[tuple[Call, calls.Outcome]] = []

    # -- tasks ----------------------------------------------------------------------------------

    def begin(self, node: int, action: calls.Action) -> Call | None:
        """Enter RUNNING or REVERTING under the next attempt number, and prepare the call.

        None when it could not be prepared (an argument is missing): then its outcome is among
        `stillborn`.
        """
        record = self._record(node)
        atom: Any = self._plan.items[node]
        old_state = record.state
        record.attempt += 1
        record.action = action
        record.worker = record.started = record.ended = None
        record.progress = record.progress_details = None
        executes = action == calls.EXECUTE
        state = record.state = states.RUNNING if executes else states.REVERTING
        if executes and record.failure is not None:
            self._storage.clear(record)
        if self._kept:
            self._storage.mark(record)
        self._note(record, atom, state, old_state, _NO_RESULT)
        if self._plan.kinds[node] == plan_module.RETRY:
            return RetryCall(node, atom, action)
        call = calls.Invocation(
            atom,
            action,
            record.uuid,
            record.attempt,
            node=node,
            flow_uuid=self._flow_uuid,
            priority=atom.priority,
            events=functools.partial(
                self._local_event if self._in_process or atom.local else self._remote_event, node
            ),
        )
        if self._doomed and executes and node in self._doomed:
            self.stillborn.append((call, calls.Outcome(self._doomed.pop(node))))
            return None
        return self._prepare(call, atom, record)

    def _prepare(
        self, call: calls.Invocation, atom: task_module.Task, record: models.AtomDetail
    ) -> calls.Invocation | None:
        executes = call.action == calls.EXECUTE
        rebind = atom.rebind if executes else atom.revert_rebind
        try:
            if rebind:
                optional = atom.optional if executes else atom.revert_optional
                call.arguments = self._arguments(atom.name, rebind, optional)
        except Exception as error:
            if not executes and record.failure is not None and record.last_results is None:
                # It failed for want of arguments: nothing was done, so there is nothing to undo.
                outcome = calls.Outcome(None)
            else:
                outcome = calls.Outcome(_failed_to_begin(atom.name, call.action, error))
            self.stillborn.append((call, outcome))
            return None
        if not executes:
            call.result = record.failure if record.failure is not None else record.results
            call.failures = self._storage.get_execute_failures()
        return call

    def finish(self, call: Call, outcome: calls.Outcome) -> str:
        """Store an outcome; return the state the atom enters by it."""
        record = self._record(call.node)
        value = outcome.value
        failed = isinstance(value, ft.Failure)
        if call.action == calls.EXECUTE:
            state = states.FAILURE if failed else states.SUCCESS
        else:
            state = states.REVERT_FAILURE if failed else states.REVERTED
        old_state = record.state
        record.worker = outcome.worker
        record.started = outcome.started
        record.ended = outcome.ended
        if not failed:
            record.progress = None
        self._storage.put(record, state, value)
        atom: Any = self._plan.items[call.node]
        if state == states.SUCCESS and atom.save_as:
            _warn_if_short(atom, value)
        self._note(record, atom, state, old_state, value)
        return state

    def give_back(self, node: int) -> None:
        """Undo `begin` of what did not start after all; the attempt number stays used.

        Without effect on an atom that is not begun.
        """
        record = self._record(node)
        old_state = record.state
        if old_state == states.RUNNING:
            record.state = states.PENDING
        elif old_state == states.REVERTING:
            record.state = states.FAILURE if record.failure is not None else states.SUCCESS
        else:
            return
        self._storage.mark(record)
        self._note(record, self._plan.items[node], record.state, old_state, _NO_RESULT)

    # -- retries --------------------------------------------------------------------------------

    def run_retry(self, call: RetryCall) -> calls.Outcome:
        """Execute or revert a retry here and now; whatever it raises is its outcome."""
        outcome: calls.Outcome = self._retries.submit(self._call_retry, call).result()
        return outcome

    def _call_retry(self, call: RetryCall) -> calls.Outcome:
        started = time.time()
        retry = call.retry
        value: Any
        try:
            if self._doomed and call.action == calls.EXECUTE and call.node in self._doomed:
                return calls.Outcome(self._doomed.pop(call.node))
            history = self._storage.get_retry_history(retry.name)
            if call.action == calls.EXECUTE:
                found = self._arguments(retry.name, retry.rebind, retry.optional)
                value = retry.execute(history=history, **found)
            else:
                found = self._arguments(retry.name, retry.revert_rebind, retry.revert_optional)
                value = retry.revert(**self._offered(retry, history), **found)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
        return calls.Outcome(value, calls.LOCAL, started, time.time())

    def _offered(self, retry: retry_module.Retry, history: retry_module.History) -> dict[str, Any]:
        """What the engine itself gives to a retry's `revert`, as far as it takes it."""
        accepts = retry.revert_accepts
        offered: dict[str, Any] = {}
        if accepts is None or retry_module.EXECUTE_REVERT_HISTORY in accepts:
            offered[retry_module.EXECUTE_REVERT_HISTORY] = history
        if accepts is None or retry_module.REVERT_FLOW_FAILURES in accepts:
            failures = dict(self._storage.get_execute_failures())
            offered[retry_module.REVERT_FLOW_FAILURES] = failures
        return offered

    def ask(self, failure: ft.Failure, retry_node: int, failed_node: int) -> str:
        """Tell a retry who failed, and return what it decides.  What it raises passes through."""
        retry: Any = self._plan.items[retry_node]
        self._storage.save_retry_failure(retry.name, self._plan.names[failed_node], failure)
        history = self._storage.get_retry_history(retry.name)
        found = self._arguments(retry.name, retry.rebind, retry.optional)
        decision: str = retry.on_failure(history=history, **found)
        return decision

    def begin_again(self, node: int) -> None:
        """A retry decided to run its flow again, and the flow is undone: enter RETRYING."""
        record = self._record(node)
        old_state, record.state = record.state, states.RETRYING
        record.intention = states.EXECUTE
        self._storage.mark(record)
        self._note(record, self._plan.items[node], states.RETRYING, old_state, _NO_RESULT)

    # -- many at once ---------------------------------------------------------------------------

    def intend(self, changes: Iterable[tuple[int, str]]) -> None:
        """Store what the scheduler means to do with atoms from now on."""
        for node, intention in changes:
            record = self._record(node)
            if record.intention != intention:
                record.intention = intention
                self._storage.mark(record)

    def ignore(self, nodes: Iterable[int]) -> None:
        """Deciders left these atoms out."""
        for node in nodes:
            record = self._record(node)
            old_state, record.state = record.state, states.IGNORE
            record.intention = states.IGNORE
            self._storage.mark(record)
            self._note(record, self._plan.items[node], states.IGNORE, old_state, _NO_RESULT)

    def reset(self, nodes: Iterable[int]) -> None:
        """Back to PENDING, with results and failures forgotten; attempt numbers go on."""
        for node in nodes:
            record = self._record(node)
            old_state = record.state
            self._doomed.pop(node, None)
            if old_state == states.PENDING and record.intention == states.EXECUTE:
                continue
            self._storage.reset(record.name)
            self._note(record, self._plan.items[node], states.PENDING, old_state, _NO_RESULT)

    # -- deciders -------------------------------------------------------------------------------

    def vote(self, node: int) -> list[deciders.Depth]:
        """Ask the deciders of a target; return the depths of those that said no.

        Every decider gets the results of all its target's decider-linked sources, by name.  Those
        of ignored sources are not asked.  What a decider raises passes through.
        """
        history: dict[str, Any] = {}
        asked = []
        for edge in self._plan.deciders[node]:
            if edge.source >= 0:
                record = self._record(edge.source)
                if record.state == states.IGNORE:
                    continue
                history[record.name] = self._storage.get_execute_result(record.name)
            asked.append(edge)
        return [edge.depth for edge in asked if not edge.decider(history=history)]

    def doom(self, node: int, error: BaseException) -> None:
        """Let a target whose deciders could not be asked fail when it begins."""
        failure = ft.Failure.from_exception(error)
        plan = self._plan
        inside: Collection[int] = (node,)
        if plan.kinds[node] == plan_module.FLOW:
            inside = range(node, plan.end[node])
        self._doomed.update((n, failure) for n in inside if plan.is_atom(n))

    # -- telling --------------------------------------------------------------------------------

    def listen(self) -> None:
        """Look whether anybody listens (asked once a turn, not once an atom)."""
        self._listening = bool(self._notifier.topics)

    def deliver(self) -> None:
        """Tell the listeners what was written by now."""
        while self._notices:
            notices, self._notices = self._notices, []
            for notice in notices:
                self._tell(notice)

    def _note(
        self, record: models.AtomDetail, atom: Any, state: str, old_state: str | None, result: Any
    ) -> None:
        if self._listening or getattr(atom, "_notifier", None) is not None:
            # The record goes on changing before this is told.
            who = (record.worker, record.started, record.ended)
            self._notices.append(_Notice(record, atom, state, old_state, result, *who))

    def _tell(self, notice: _Notice) -> None:
        record, atom, state = notice.record, notice.atom, notice.state
        if isinstance(atom, task_module.Task) and atom._notifier is not None:
            progress = _PROGRESS.get(state)
            if progress is not None:
                atom.notifier.notify(task_module.EVENT_UPDATE_PROGRESS, {"progress": progress})
        if not self._listening:
            return
        details: dict[str, Any] = {
            f"{record.kind}_name": record.name,
            f"{record.kind}_uuid": record.uuid,
            "old_state": notice.old_state,
        }
        if notice.result is not _NO_RESULT:
            details["result"] = notice.result
            details.update(worker=notice.worker, started=notice.started, ended=notice.ended)
        self._notifier.notify(state, details)

    def _local_event(self, node: int, event_type: str, details: dict[str, Any]) -> None:
        if event_type != task_module.EVENT_UPDATE_PROGRESS:
            return
        progress = details.get("progress")
        if isinstance(progress, int | float):
            rest = {key: value for key, value in details.items() if key != "progress"}
            self._storage.set_task_progress(self._plan.names[node], progress, rest)
            if self._kept:
                self._touched()

    def _remote_event(self, node: int, event_type: str, details: dict[str, Any]) -> None:
        self._local_event(node, event_type, details)
        atom: Any = self._plan.items[node]
        if atom._notifier is not None:
            atom.notifier.notify(event_type, details)

    # -- helpers --------------------------------------------------------------------------------

    def _record(self, node: int) -> models.AtomDetail:
        record = self._storage.records[node]
        assert record is not None
        return record

    def _arguments(
        self, name: str, rebind: Mapping[str, str], optional: Collection[str]
    ) -> Mapping[str, Any]:
        return self._storage.fetch_mapped_args(rebind, name, optional_args=optional)


#: What an atom's own listeners are told about its progress by the engine.
_PROGRESS: Final[Mapping[str, float]] = {
    states.RUNNING: 0.0,
    states.REVERTING: 0.0,
    states.SUCCESS: 1.0,
    states.REVERTED: 1.0,
}


def _failed_to_begin(name: str, action: calls.Action, error: Exception) -> ft.Failure:
    problem = exceptions.NotFound(f"Atom {name!r} cannot {action}: {error}")
    problem.__cause__ = error
    return ft.Failure.from_exception(problem)


def _warn_if_short(atom: task_module.Task, value: Any) -> None:
    for name, index in atom.save_as.items():
        if arguments.element(value, index) is arguments.MISSING:
            LOG.warning(
                "Atom %r promised %r (part %r of its result), but returned %s",
                atom.name,
                name,
                index,
                type(value).__name__,
            )
