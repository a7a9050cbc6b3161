"""Retry controllers: they execute, decide and are reverted in the thread of the engine."""

from __future__ import annotations

import datetime as dt
import functools
import math
import time
from collections.abc import Callable
from typing import Any

from wbengine import exceptions, states
from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine._calls import invocation as calls
from wbengine._concurrency import clocks, contexts
from wbengine._runtime import plan as plan_module
from wbengine._runtime import retry_decisions, retry_delays
from wbengine._runtime.node_calls import RetryCall
from wbengine.persistence import models
from wbengine.running import LOCAL, in_scope
from wbengine.types import failure as ft

__all__ = ["Retries", "latest_start"]


class Retries:
    """The retry controllers of a run.

    :param clock: the clock of the run.
    """

    def __init__(
        self, plan: plan_module.Plan, storage: storage_module.Storage, clock: clocks.Clock
    ) -> None:
        self._plan = plan
        self._storage = storage
        self._clock = clock
        #: Errors of retry controllers by name, if no surrounding controller retried.
        self.errors: dict[str, ft.Failure] = {}

    def run(self, call: RetryCall) -> calls.Outcome:
        """Execute or revert a retry controller; an exception becomes its outcome.

        :raises BaseException: if it was interrupted (`SystemExit` or Ctrl-C).
        """
        started = time.time()
        retry, fetch = call.retry, self._storage.fetch_mapped_args
        # Only now: a suspension may undo the beginning of a controller, but not end its wait.
        retry_delays.clear(self._storage.record(retry.name))
        value: Any
        try:
            if call.action == calls.EXECUTE:
                self._begin_attempt(retry)
            history = self._storage.get_retry_history(retry.name, self._clock.time())
            if call.action == calls.EXECUTE:
                arguments = fetch(retry.rebind, retry.name, optional_args=retry.optional)
                value = _call(retry.execute, history=history, **arguments)
            else:
                arguments = fetch(
                    retry.revert_rebind, retry.name, optional_args=retry.revert_optional
                )
                offered = self._offered(retry, history)
                value = _call(retry.revert, **offered, **arguments)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
        outcome = calls.Outcome(value, LOCAL, started, time.time())
        if outcome.failed:
            calls.raise_interruption(outcome)
        return outcome

    def _begin_attempt(self, retry: retry_module.Retry) -> None:
        record: Any = self._storage.record(retry.name)
        if record.first_start is None and retry._retry_for < math.inf:
            self._storage.begin_retry_history(retry.name, self._clock.time())
        if retry._max_history is not None:  # With the new attempt, the history has this length.
            self._storage.limit_retry_history(retry.name, retry._max_history - 1)

    def _offered(self, retry: retry_module.Retry, history: retry_module.History) -> dict[str, Any]:
        accepts = retry.revert_accepts
        offered: dict[str, Any] = {}
        if accepts is None or retry_module.EXECUTE_REVERT_HISTORY in accepts:
            offered[retry_module.EXECUTE_REVERT_HISTORY] = history
        if accepts is None or retry_module.REVERT_FLOW_FAILURES in accepts:
            failures = dict(self._storage.get_execute_failures())
            offered[retry_module.REVERT_FLOW_FAILURES] = failures
        return offered

    def ask(self, failure: ft.Failure, retry_node: int, failed_node: int) -> str:
        """Return the decision of a retry controller. Its exceptions propagate."""
        retry: Any = self._plan.items[retry_node]
        self._storage.save_retry_failure(retry.name, self._plan.names[failed_node], failure)
        if retry_node - 1 in self._plan.retried and self._is_final(failed_node, failure):
            return retry_module.REVERT
        if retry_node - 1 in self._plan.retried:
            self._store_first_start(retry, failed_node)
        history = self._storage.get_retry_history(retry.name, self._clock.time())
        arguments = self._storage.fetch_mapped_args(
            retry.rebind, retry.name, optional_args=retry.optional
        )
        decision: str = _call(retry.on_failure, history=history, **arguments)
        return decision

    def _store_first_start(self, retry: retry_module.Retry, node: int) -> None:
        """After the first failure of a task, store when its execution started.

        The task may have waited after its controller began, for example for a permit or its `eta`.
        """
        record: Any = self._storage.record(retry.name)
        atom = self._storage.records[node]
        if record.first_start is not None and len(record.results) + record.dropped == 1 and atom:
            start = max(record.first_start, latest_start(atom, self._clock.time()))
            self._storage.begin_retry_history(retry.name, start)

    def _is_final(self, node: int, failure: ft.Failure) -> bool:
        """Return whether a task with `retries` would fail again in the same way.

        This is so if its `expires` moment has passed or an argument is missing.
        """
        task: Any = self._plan.items[node]
        if isinstance(task.expires, dt.datetime) and failure.check(exceptions.Expired):
            return True
        record = self._storage.records[node]
        began = record is not None and record.started is not None
        return not began and failure.check(exceptions.NotFound) is not None

    def resolve(
        self, node: int, failure: ft.Failure, defer_reverts: bool
    ) -> retry_decisions.Resolution:
        """Ask the retry controllers around a failed atom.

        A controller that raises an exception, or returns an invalid decision, fails itself; the
        next outer controller is asked. A cancelled atom is not retried.
        """
        if failure.check(exceptions.Cancelled):
            return retry_decisions.everything(self._plan)
        errors: list[tuple[int, ft.Failure]] = []

        def ask(retry_node: int, failed_node: int) -> str:
            nonlocal node
            node = retry_node
            return self.ask(failure, retry_node, failed_node)

        while True:
            try:
                resolution = retry_decisions.resolve(
                    self._plan, node, ask, defer_reverts=defer_reverts
                )
            except Exception as error:
                failure = ft.Failure.from_exception(error)
                errors.append((node, failure))
                continue
            if resolution.intention != states.RETRY:
                self.errors.update((self._plan.shown_name(n), error) for n, error in errors)
            return resolution


def latest_start(record: models.AtomDetail, now: float) -> float:
    """Return the start of an execution that has just ended, on the clock of the engine.

    The times in the record may be those of a worker, whose clock may differ.

    :param now: Unix seconds.
    """
    started, ended = record.started, record.ended
    return now if started is None or ended is None else now - max(0.0, ended - started)


def _call(method: Callable[..., Any], **arguments: Any) -> Any:
    return contexts.run(functools.partial(in_scope, method, **arguments))
