"""The engine whose tasks run on remote workers."""

from __future__ import annotations

import contextlib
import logging
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import exceptions, invocation, task
from wbengine.engines import options as engine_options
from wbengine.engines.base import Engine
from wbengine.engines.worker_based import executor as executors
from wbengine.engines.worker_based.engine_side import reconstruction
from wbengine.engines.worker_based.engine_side.resume import EarlierRuns
from wbengine.engines.worker_based.executor import WorkerTaskExecutor
from wbengine.runtime import plan as plans
from wbengine.runtime import run as run_module
from wbengine.runtime import saving


class Share(invocation.TaskExecutor):
    """What one flow's engine has of an executor that several use: what it submits, no more.

    The executor runs as long as one of those engines does; or, where whoever made it started it,
    until he stops it.
    """

    keeps_times = True

    def __init__(self, executor: WorkerTaskExecutor, flow: str) -> None:
        self._executor = executor
        self._flow = flow
        self._attached = False

    def submit(self, call: invocation.Invocation, done: invocation.Done) -> None:
        self._executor.submit(call, done)

    def submit_many(
        self, invocations: Iterable[invocation.Invocation], done: invocation.Done
    ) -> None:
        self._executor.submit_many(invocations, done)

    def withdraw(self) -> list[invocation.Invocation]:
        return self._executor.withdraw(self._flow)

    def cancel(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._executor.cancel(invocations)

    def retire(self, invocations: Iterable[invocation.Invocation]) -> None:
        self._executor.retire(invocations)

    def disown(self) -> None:
        self._executor.disown(self._flow)

    @property
    def survives_engine(self) -> bool:  # type: ignore[override]
        return self._executor.survives_engine

    @property
    def has_ledger(self) -> bool:  # type: ignore[override]
        return self._executor.has_ledger

    def start(self) -> None:
        if not self._attached:
            self._executor.attach()
            self._attached = True

    def finish(self) -> None:
        self._executor.finish(self._flow)

    def stop(self) -> None:
        self._executor.leave(self._flow)
        if self._attached:
            self._attached = False
            self._executor.detach()


LOG = logging.getLogger(__name__)

#: So many tasks that no worker can run are named in the error.
_MAX_TOLD: Final = 3


class WorkerBasedActionEngine(Engine):
    """Run a flow's tasks on workers reached through a broker; retries run here.

    Options, besides those of every engine:

    - `url`, `transport`, `transport_options`: the broker; without any, `$WBENGINE_URL`, else a
      folder of this user that workers on this host find too.
    - `exchange` (`'default'`): the name under which engine and workers meet.
    - `topics`: use only workers of these topics (a string: separated by commas); without any, all
      that are heard of.
    - `transition_timeout` (60 s, None for no limit): how long a request may wait for a worker.
    - `worker_expiry` (60 s, None for never): the silence after which a worker is lost.
    - `strict_results`: accepted, as by the other kinds; what cannot travel is always refused.
    - `retry_options`: waits between two attempts to reach the broker.
    - `ledger`: where it is written which request was taken by whom, and what came of it; the same
      place as of the workers.  `'postgresql://user@host/database'`, `'mysql://...'`,
      `'sqlite:////path'`, `'dir:///path'`, or `'none'`: engine and workers do without.  Where none
      is named, `$WBENGINE_LEDGER`, else the broker's own (folders and memory have one).
    - `keys`: the file of the keys that messages are signed with (`wbengine keys new` makes one);
      without one, `$WBENGINE_KEYS`.  `'none'`, or neither: they are not signed, and all
      are believed.
    - `interop`: `'taskflow'` to use workers that run OpenStack TaskFlow.
    - `on_worker_lost` (`'fail'`): what becomes of a task whose worker was lost while it ran it, if
      its `idempotent` is None: `'resend'` it to another, or `'fail'` it as `WorkerLost`.
    - `max_resends` (3): how often one request is sent again for that reason.
    - `timelimit` (None): `(soft, hard)`, in seconds, for tasks without a `timelimit` of their own.
    - `max_message_size` (16 MiB): bytes of an encoded request above which its task fails.
    - `broker_persistent`: whether requests survive the broker's end; without it, where no ledger
      backs them.
    - `result_ttl` (7 days): how long the ledger keeps what nobody comes back for, in seconds (0:
      not at all, None: for ever).
    - `trace_arguments` (False): show arguments in message headers, cut, and masked where a name
      says password, token, secret or key.
    - `executor`: a `WorkerTaskExecutor` to use instead of one of the engine's own.  Several engines
      may share one; it runs as long as one of them does, or, once it was started by whoever made
      it, until he stops it.  The options above, but `strict_results`, are then its own: those that
      are given to the engine have no effect, of which the log warns.
    """

    OPTIONS = engine_options.WORKER_BASED

    # Without defaults, unlike its base: as in TaskFlow.
    def __init__(
        self, flow: Any, flow_detail: Any, backend: Any, options: Mapping[str, Any]
    ) -> None:
        super().__init__(flow, flow_detail, backend, options)
        own = self.options.get("executor") is None
        self._earlier_runs = EarlierRuns(self._storage, self.executor, own=own)

    @property
    def executor(self) -> Any:
        """The `WorkerTaskExecutor` that runs this engine's tasks."""
        given = self.options.get("executor")
        return super().executor if given is None else given

    def _make_executor(self) -> Any:
        options = self.options
        given = options.get("executor")
        if isinstance(given, executors.WorkerTaskExecutor):
            if unused := sorted(engine_options.WORKER_EXECUTOR.keys() & options.keys()):
                LOG.warning(
                    "options of an engine that have no effect, for its executor has its own: %s",
                    ", ".join(unused),
                )
            return Share(given, self._flow_detail.uuid)
        if given is not None:
            raise TypeError(f"Option executor must be a WorkerTaskExecutor, not {given!r:.80}")
        told: dict[str, Any] = {"uuid": str(uuids.uuid4()), "exchange": "default"}
        for name in engine_options.WORKER_EXECUTOR.keys() & options.keys():
            told[name] = self._settings[name]
        return executors.WorkerTaskExecutor(**told)

    def _check_tasks(self, plan: plans.Plan) -> None:
        refused: list[tuple[task.Task, type[task.Task]]] = []
        changed: list[tuple[task.Task, str]] = []
        for item in plan.items:
            if not isinstance(item, task.Task) or (self._local_tasks and item in self._local_tasks):
                continue
            made = item.inner if isinstance(item, task.Map) else item
            if type(made).__module__ == task.__name__:
                refused.append((item, type(made)))
            elif (lost := reconstruction.what_is_lost(made)) is not None:
                changed.append((item, lost))
        if refused:
            raise exceptions.CompilationFailure(_no_class(refused))
        if changed:
            raise exceptions.CompilationFailure(_not_rebuilt(changed))

    @contextlib.contextmanager
    def _executing(self, run: run_module.Run) -> Iterator[None]:
        held = self._ownership.held
        self._earlier_runs.take_name()
        try:
            with super()._executing(run):
                self._earlier_runs.begin(held.check if held is not None else None)
                if self._durability != saving.EACH:
                    # What is published later may be written later still.
                    self._storage.writer.flush()
                yield
                self._earlier_runs.end(run.state)
        finally:
            self._earlier_runs.let_go()


def _no_class(refused: Sequence[tuple[task.Task, type[task.Task]]]) -> str:
    """Why no worker can run tasks that are wrapped functions, and what to do about it."""
    names = [item.name for item, _ in refused]
    told = ", ".join(map(repr, names[:_MAX_TOLD]))
    if len(names) > _MAX_TOLD:
        told += f" and {len(names) - _MAX_TOLD} more"
    kinds = " or ".join(sorted({f"a {wrapper.__name__}" for _, wrapper in refused}))
    return (
        f"No worker can run {'task' if len(names) == 1 else 'tasks'} {told}: workers offer tasks by"
        f" the name of their class, and {kinds} has none but the wrapper's own. Put @task.task"
        " above the function, or write a class with an execute method, and offer that; or keep it"
        f" in the engine's process: local_tasks={names[:_MAX_TOLD]}"
    )


def _not_rebuilt(refused: Sequence[tuple[task.Task, str]]) -> str:
    """Why no worker can make tasks as they are here, and what to do about it."""
    told = "; ".join(f"{item.name!r}: {lost}" for item, lost in refused[:_MAX_TOLD])
    if len(refused) > _MAX_TOLD:
        told += f"; and {len(refused) - _MAX_TOLD} more"
    return (
        "A worker makes a task anew from its class and its name, and would lose what these were"
        f" constructed with: {told}.  Let execute take it as an argument (inject={{...}} gives it"
        " to one task), or keep the task in the engine's process:"
        f" local_tasks={[item.name for item, _ in refused[:_MAX_TOLD]]}"
    )
