"""Retries at work: they execute, decide and are reverted in the engine's own thread."""

from __future__ import annotations

import datetime as dt
import time
from typing import Any, Final, NamedTuple

from wbengine import exceptions, states
from wbengine import invocation as calls
from wbengine import retry as retry_module
from wbengine import storage as storage_module
from wbengine.persistence import models
from wbengine.runtime import plan as plan_module
from wbengine.runtime import retry_decisions, waits
from wbengine.types import failure as ft

__all__ = ["RETRY_AT", "Retries", "RetryCall"]

#: Where the record of a retry that waits says until when (unix seconds), in its `meta`.
RETRY_AT: Final = "retry_at"


class RetryCall(NamedTuple):
    """A retry about to execute or to be reverted, in the engine's own thread."""

    node: int
    retry: retry_module.Retry
    action: calls.Action


class Retries:
    """The retries of one plan on one storage."""

    def __init__(self, plan: plan_module.Plan, storage: storage_module.Storage) -> None:
        self._plan = plan
        self._storage = storage
        #: What went wrong while retries were asked, by their names, where no other one tried again.
        self.errors: dict[str, ft.Failure] = {}

    def run(self, call: RetryCall) -> calls.Outcome:
        """Execute or revert a retry here and now; whatever it raises is its outcome.

        :raises BaseException: an interruption ended it, `SystemExit` or Ctrl-C.
        """
        started = time.time()
        retry, fetch = call.retry, self._storage.fetch_mapped_args
        value: Any
        try:
            history = self._storage.get_retry_history(retry.name)
            if call.action == calls.EXECUTE:
                found = fetch(retry.rebind, retry.name, optional_args=retry.optional)
                value = retry.execute(history=history, **found)
            else:
                found = fetch(retry.revert_rebind, retry.name, optional_args=retry.revert_optional)
                value = retry.revert(**self._offered(retry, history), **found)
        except BaseException as error:
            value = ft.Failure.from_exception(error)
        outcome = calls.Outcome(value, calls.LOCAL, started, time.time())
        if outcome.failed:
            calls.raise_interruption(outcome)
        return outcome

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
        if retry_node - 1 in self._plan.retried and self._is_final(failed_node, failure):
            return retry_module.REVERT
        history = self._storage.get_retry_history(retry.name)
        found = self._storage.fetch_mapped_args(
            retry.rebind, retry.name, optional_args=retry.optional
        )
        decision: str = retry.on_failure(history=history, **found)
        return decision

    def _is_final(self, node: int, failure: ft.Failure) -> bool:
        """Whether a task with retries of its own would fail in the same way each time: the moment
        until which it may start is over, or an argument is missing.
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
        """Ask the retries around an atom that failed.

        A retry that raises, or answers nonsense, is a failure itself: those around it are asked.
        Nobody is asked whether what was cancelled is tried again: somebody wanted it to end.
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
                found = retry_decisions.resolve(self._plan, node, ask, defer_reverts=defer_reverts)
            except Exception as error:
                failure = ft.Failure.from_exception(error)
                errors.append((node, failure))
                continue
            if found.intention != states.RETRY:
                self.errors.update((self._plan.names[n], error) for n, error in errors)
            return found

    def backoff_left(self, node: int, now: float, over: bool) -> float:
        """How many seconds a retry that runs its flow again has to wait from `now` on.

        Asks it the first time, and keeps the answer in its record; `over` says that it waited
        already.  What the retry raises passes through.

        :raises ValueError: when its answer is no number of seconds.
        """
        retry: Any = self._plan.items[node]
        record = self._storage.record(retry.name)
        moment = record.noted(RETRY_AT)
        if moment is not None:
            return 0.0 if over else max(0.0, moment - now)
        seconds = retry.wait(self._storage.get_retry_history(retry.name))
        if not (isinstance(seconds, int | float) and seconds >= 0):
            raise ValueError(
                f"wait() of retry {retry.name!r} answered {seconds!r}; it must be seconds, not"
                " negative"
            )
        if seconds:
            record.meta[RETRY_AT] = now + seconds
            self._storage.writer.mark(record)
        return seconds

    @staticmethod
    def clear_backoff(record: models.AtomDetail) -> None:
        """A retry, or a task that waited for a signal, does not wait any more."""
        if record.has_meta:
            record.meta.pop(RETRY_AT, None)
            record.meta.pop(waits.WAITS_FOR, None)
