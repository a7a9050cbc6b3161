"""The engine whose tasks run on remote workers."""

from __future__ import annotations

import logging
import uuid as uuids
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from wbengine import atom, exceptions, task
from wbengine._calls import invocation
from wbengine._concurrency import scopes
from wbengine._configuration import default_broker
from wbengine._introspection import object_names
from wbengine._runtime import plan as plans
from wbengine._runtime import run as run_module
from wbengine._runtime import saving
from wbengine.engines import _option_table as engine_options
from wbengine.engines.base import Engine
from wbengine.engines.worker_based._requests.options import NAMES, RequestOptions
from wbengine.engines.worker_based._resume import EarlierRuns
from wbengine.engines.worker_based.executor import WorkerTaskExecutor


class Share(invocation.TaskExecutor):
    """The part of a shared executor that one flow's engine uses."""

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

_MAX_NAMED_TASKS: Final = 3


class WorkerBasedActionEngine(Engine):
    """Run the tasks of a flow on workers; retry controllers run in the process of the engine.

    Options, in addition to those of every engine:

    - `url`, `transport`, `transport_options`: the broker.  Default: `$WBENGINE_URL`, else the
      database of the flows if it is PostgreSQL or MySQL, else a folder of this user, which workers
      on this host use too.  Without a backend, that database is `$WBENGINE_PERSISTENCE`.
    - `exchange` (`'default'`): the name that separates groups of engines and workers on a broker.
    - `topics`: use only the workers of these topics, in this order; a string contains them with
      commas, and `*` matches one part of a name (`video.*`).  Default: all known workers.
    - `ledger`: with RabbitMQ and kombu, the place of the ledger, the same as that of the workers:
      the URL of a Redis, `'postgresql://user@host/database'`, `'mysql://...'`, `'sqlite:////path'`,
      `'dir:///path'`, or `'none'`.  Default: `$WBENGINE_LEDGER`, else none.  Other brokers use only
      their own ledger.
    - `keys`: the file with the keys that sign messages (`wbengine keys new`), or `'none'`.
      Default: `$WBENGINE_KEYS`.  Without keys all messages are accepted.
    - `transition_timeout` (60): seconds that a task waits while no worker offers it, or idle
      workers do not start it; then it fails with `RequestTimeout`.  The time in which all workers
      are busy is excluded.  None: no limit.
    - `worker_expiry` (60): seconds.  The interval of heartbeats is a quarter of it, from 0.5 s to
      5 s.  A worker is lost after three missing heartbeats, or, if it is TaskFlow's and sends none,
      after `worker_expiry` seconds without a message.  None: never.
    - `on_worker_lost` (`'fail'`): what to do if the worker of a task is lost and its `idempotent`
      is None: `'fail'` with `WorkerLost`, or `'resend'` the task to another worker.
    - `max_resends` (3): maximum number of resends of a request for this reason.
    - `timelimit` (None): `(soft, hard)` seconds, for tasks without their own `timelimit`.
    - `max_message_size` (16 MiB): a task whose encoded request has more bytes fails.
    - `broker_persistent`: whether the broker stores requests on its disk.  Default: if there is no
      ledger.
    - `result_ttl` (7 days): seconds for which the ledger keeps results that no engine read.
      0: results are not kept; None: forever.
    - `trace_arguments` (False): show arguments in the message headers `argsrepr` and `kwargsrepr`,
      at most 200 characters, and `***` for names with password, token, secret or key.
    - `retry_options`: the pauses between two attempts to reach the broker.
    - `strict_results`: no effect: values that cannot be encoded are always refused.
    - `interop` (None): `'taskflow'` to use workers that run OpenStack TaskFlow.
    - `executor`: a `WorkerTaskExecutor` that several engines share.  It runs while any of them
      runs, or from its `start` until its `stop`.  The options above, except `strict_results`, have
      no effect then, and cause a warning in the log.
    """

    OPTIONS = engine_options.WORKER_BASED

    @classmethod
    def read_options(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        options = super().read_options(given)
        RequestOptions.of({name: options[name] for name in given if name in NAMES})
        return options

    # No defaults, unlike the base class: TaskFlow's signature.
    def __init__(
        self, flow: Any, flow_detail: Any, backend: Any, options: Mapping[str, Any]
    ) -> None:
        super().__init__(flow, flow_detail, backend, options)
        own = self.options.get("executor") is None
        self._earlier_runs = EarlierRuns(self._storage, self.executor, own=own)

    @property
    def executor(self) -> Any:
        """The `WorkerTaskExecutor` that runs this engine's tasks."""
        shared = self.options.get("executor")
        return super().executor if shared is None else shared

    @property
    def previous_broker(self) -> str | None:
        """The URL of the broker of the previous run, if this run uses another one.

        It contains no password.
        """
        return self._earlier_runs.other_broker()

    def _make_executor(self) -> Any:
        options = self.options
        shared = options.get("executor")
        if isinstance(shared, WorkerTaskExecutor):
            if unused := sorted(engine_options.WORKER_EXECUTOR.keys() & options.keys()):
                LOG.warning(
                    "engine options without effect, because the given executor has its"
                    " own settings: %s",
                    ", ".join(unused),
                )
            return Share(shared, self._flow_detail.uuid)
        if shared is not None:
            raise TypeError(f"executor must be a WorkerTaskExecutor, got {shared!r:.80}")
        arguments: dict[str, Any] = {"uuid": str(uuids.uuid4()), "exchange": "default"}
        for name in engine_options.WORKER_EXECUTOR.keys() & options.keys():
            arguments[name] = self._settings[name]
        if not arguments.get("interop"):
            arguments["url"], arguments["transport"] = default_broker.choose(
                arguments.get("url"),
                arguments.get("transport"),
                arguments.get("transport_options"),
                None if self._backend is None else default_broker.store_url(self._backend.conf),
            )
        return WorkerTaskExecutor(**arguments)

    def _check_tasks(self, plan: plans.Plan) -> None:
        refused: list[tuple[task.Task, type[task.Task]]] = []
        changed: list[tuple[task.Task, str]] = []
        for item in plan.items:
            if not isinstance(item, task.Task) or (self._local_tasks and item in self._local_tasks):
                continue
            inner = item.inner if isinstance(item, task.Map) else item
            if type(inner).__module__ == task.__name__:
                refused.append((item, type(inner)))
            elif (lost := _lost_attributes(inner)) is not None:
                changed.append((item, lost))
        if refused:
            raise exceptions.CompilationFailure(_no_class(refused))
        if changed:
            raise exceptions.CompilationFailure(_not_rebuilt(changed))

    def _begin_run(self) -> None:
        self._earlier_runs.begin(self._ownership.held)

    @scopes.scope
    def _executing(self, run: run_module.Run, opened: scopes.Scopes) -> Iterator[None]:
        self._earlier_runs.take_name()
        try:
            with opened.add(super()._executing(run, opened)):
                if self._durability != saving.EACH:
                    # Durabilities other than EACH may defer the records of later requests.
                    self._storage.writer.flush()
                yield
                self._earlier_runs.end(run.state)
        finally:
            self._earlier_runs.release()


def _no_class(refused: Sequence[tuple[task.Task, type[task.Task]]]) -> str:
    names = [item.name for item, _ in refused]
    shown = ", ".join(map(repr, names[:_MAX_NAMED_TASKS]))
    if len(names) > _MAX_NAMED_TASKS:
        shown += f" and {len(names) - _MAX_NAMED_TASKS} more"
    kinds = " or ".join(sorted({f"a {wrapper.__name__}" for _, wrapper in refused}))
    return (
        f"No worker can run {'task' if len(names) == 1 else 'tasks'} {shown}: workers find"
        f" a task by the name of its class, and the class of {kinds} is only a wrapper."
        " Put @task.task above the function, or write a class with an execute method, and"
        " pass that to the worker; or run it in the engine's process:"
        f" local_tasks={names[:_MAX_NAMED_TASKS]}"
    )


def _not_rebuilt(refused: Sequence[tuple[task.Task, str]]) -> str:
    shown = "; ".join(f"{item.name!r}: {lost}" for item, lost in refused[:_MAX_NAMED_TASKS])
    if len(refused) > _MAX_NAMED_TASKS:
        shown += f"; and {len(refused) - _MAX_NAMED_TASKS} more"
    return (
        "A worker constructs a task only from its class and its name, and would lose the"
        f" other constructor arguments of these tasks: {shown}. Pass the values as"
        f" arguments of execute (inject={{...}} sets them for one task), or run the tasks"
        " in the engine's process:"
        f" local_tasks={[item.name for item, _ in refused[:_MAX_NAMED_TASKS]]}"
    )


# Task attributes that are lost when a worker creates the task from its class name.


class _Plain(task.Task):
    def execute(self) -> None:
        """Do nothing."""


#: Attributes of a task that only the engine reads, or that it sends to the worker.
_ENGINE_ATTRIBUTES: Final = frozenset(vars(_Plain("plain"))).union(
    name for name in dir(task.Task) if not callable(getattr(task.Task, name, None))
)

_MISSING: Final = object()


def _lost_attributes(original: task.Task) -> str | None:
    """Return the reason why a worker cannot recreate this task; None if it can.

    The task is created in the way in which workers create it. Attributes that differ between
    two constructions (a lock, a client, the time) are ignored.
    """
    cls = type(original)
    if cls.__init__ in _PLAIN_CONSTRUCTORS and cls.__new__ is object.__new__:
        return None
    try:
        other = cls(name=original.name)
        lost = _differing(original, other)
        if lost:
            lost -= _differing(cls(name=original.name), other)
    except Exception as error:
        return f"{object_names.dotted(cls)}(name=...) raises {type(error).__name__}: {error}"
    if not lost:
        return None
    names = " and ".join(map(repr, sorted(lost)))
    return f"{object_names.dotted(cls)}(name=...) must restore {names}, got another value"


#: Constructors that set only attributes that the engine reads.
_PLAIN_CONSTRUCTORS: Final = frozenset({atom.Atom.__init__, task.FunctionTask.__init__})


def _differing(one: task.Task, other: task.Task) -> set[str]:
    """Return the attributes in which two tasks differ, without those of `_ENGINE_ATTRIBUTES`."""
    first_values, second_values = vars(one), vars(other)
    return {
        name
        for name in (first_values.keys() | second_values.keys()) - _ENGINE_ATTRIBUTES
        if not _same(first_values.get(name, _MISSING), second_values.get(name, _MISSING))
    }


def _same(one: Any, other: Any) -> bool:
    try:
        return one is other or bool(one == other)
    except Exception:  # Arrays, for example, have no truth value.
        return True
