"""Submission of flows to conductors, and handles to observe and control submitted flows."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
import types
import weakref
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Generic, NamedTuple, Self, TypedDict, overload

import sqlalchemy as sa

from wbengine import _payloads, exceptions, signals, states
from wbengine._concurrency.crash_points import crashpoint
from wbengine._introspection import object_names
from wbengine._sql import caller_connections, dialects, local_wakeups
from wbengine._tasks import limit_attributes
from wbengine.engines import (
    _allowed,
    _async_run,
    _flow_errors,
    _flow_factories,
    _flow_inputs,
    _loading,
    base,
)
from wbengine.jobs import _parked_jobs, _stored
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs._places import Place, check_key
from wbengine.jobs.backends import impl_memory, impl_sql
from wbengine.persistence import _commands, _lease_renewer, _owners, models
from wbengine.persistence import base as persistence
from wbengine.persistence._debounce_keys import DebounceKey
from wbengine.persistence._published_values import loaded_from
from wbengine.persistence._unique_keys import UniqueKey
from wbengine.persistence.backends import _sql
from wbengine.persistence.backends._sql import caller_transactions
from wbengine.storage import Storage
from wbengine.types import _tags, codec

if TYPE_CHECKING:
    from wbengine._payloads.payloads import Payloads

__all__ = ["FlowHandle", "asubmit", "handle", "new_book", "new_flow", "submit", "submit_many"]


if TYPE_CHECKING:
    from typing_extensions import TypeVar, Unpack

    from wbengine import task as task_module

    _R_co = TypeVar("_R_co", covariant=True, default=Any)
else:
    from typing import TypeVar

    _R_co = TypeVar("_R_co", covariant=True)
_R = TypeVar("_R")

#: A job board, or an argument for `jobs.backends.fetch`; None: the board in the flows' database.
Board = jobs.JobBoard | Mapping[str, Any] | str | None

#: Seconds between two polls of a flow: the first pause and the longest.
_FIRST_PAUSE_SECONDS: Final = 0.01
_MAX_PAUSE_SECONDS: Final = 0.5


class FlowHandle(Generic[_R_co]):
    """A submitted flow, wherever it runs. All methods are thread-safe.

    The type parameter is the result of its workflow. `id` is the uuid of the flow. Awaiting a
    handle returns the value of `result`. If the flow was submitted in a transaction of the caller,
    all methods raise `FlowNotCommitted` until it is committed.
    """

    def __init__(
        self,
        id: str,
        backend: persistence.Backend,
        board: jobs.JobBoard,
        job: jobs.Job | None = None,
        opened: object = None,
        is_committed: bool = True,
    ) -> None:
        #: UUID of the flow.
        self.id: Final = id
        # Whether the flow was stored at some time.
        self._is_committed = is_committed
        self._open = opened
        self._backend = backend
        self._board = board
        self._job = job

    @property
    def state(self) -> str:
        """The state; PENDING before the flow starts.

        WAITING: a conductor continues the flow when a wait of its tasks ends. BLOCKED: the code of
        a conductor did not repeat the recorded steps. SUSPENDED: a command suspended it, or its
        conductor stopped. A flow that is to run again (`operations.request`) has its earlier state
        until a conductor begins.

        :raises FlowDeleted: if the flow is not stored any more.
        """
        detail = self._read(lazy=True)
        if detail.is_parked:
            return states.WAITING
        return states.BLOCKED if detail.is_blocked else self._stored_state(detail)

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until the flow has ended; return whether it has.

        This waits also for the end of a run that was requested (`operations.request`), and for the
        store if it is unavailable.

        :raises JobFailure: if its job was deleted and no engine runs the flow: the conductor could
            not run it, and its log contains the reason.
        :raises FlowDeleted: if the flow is not stored any more.
        """
        base.check_seconds("timeout", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        for pause in self._pauses():
            seconds = pause if until is None else until - time.monotonic()
            if seconds <= 0:
                return False
            time.sleep(min(pause, seconds))
        return True

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the flow has ended; return all values by name, as `engines.run` does.

        This calls the factory of the flow, because the flow defines the names of the values.

        :raises TimeoutError: if the flow has not ended in time.
        :raises Cancelled: if the flow was cancelled.
        :raises Exception: the failure of the flow, or as `wait`.
        """
        if not self.wait(timeout):
            raise TimeoutError(
                f"Flow {self.id} did not end within {timeout:g} s: it is {self._situation()}"
            )
        detail = self._read()
        if detail.state != states.SUCCESS:
            _flow_errors.raise_recorded(Storage(detail))
        return _loading.values_of(detail, payloads=self._backend.payloads)

    def value(self, timeout: float | None = None) -> _R_co:
        """Wait until the flow has ended; return the result of its workflow.

        :raises TypeError: if the flow is not a workflow or a single task: use `result`.
        :raises Exception: as `result`.
        """
        self.result(timeout)
        result = _loading.result_of(self._read())
        value: _R_co = _payloads.loaded(self._backend.payloads, result, "result of the flow")
        return value

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._result().__await__()

    async def _result(self) -> dict[str, Any]:
        pauses = self._pauses()
        while (pause := await _async_run.in_thread(lambda: next(pauses, None))) is not None:
            await asyncio.sleep(pause)
        return await _async_run.in_thread(self.result)

    def cancel(self, reason: str | None = None, *, connection: Any = None) -> bool:
        """Cancel the flow: it ends and is reverted. Return False if it has ended. Does not wait.

        An engine that runs the flow reads this command within about a second. If no engine runs
        it, the conductor that claims it next reverts it, without waiting for its `eta`.

        :param connection: cancel the flow in your transaction, as in `submit`.
        :raises FlowDeleted: if the flow is not stored any more.
        """
        command = _commands.FlowCommand(_commands.CANCEL, reason, None, time.time())
        with (
            self._storing("Cancelling a flow", connection) as backend,
            contextlib.closing(backend.get_connection()) as stored,
        ):
            try:
                stored.send_command(self.id, command)
            except exceptions.InvalidState:
                return False
        return True

    def signal(
        self, name: str, value: Any = None, *, strict: bool = False, connection: Any = None
    ) -> int:
        """Send a signal to the flow, for tasks that wait for it (`task.WaitFor`) now or later.

        `operations.signal` has the same arguments, result and exceptions.

        :raises FlowDeleted: if the flow is not stored any more.
        """
        with self._storing("Sending a signal", connection) as backend:
            new_signal = signals.Signal.of(name, value, time.time(), backend.payloads, self.id)
            return _lease_renewer.send_signal(backend, self.id, new_signal, strict=strict).number

    def published(self) -> dict[str, Any]:
        """Return the values that workflows of the flow published so far, by name.

        `operations.published` is the same for a backend and the uuid of a flow.
        """
        with codec.unknown_classes_as_text(with_codecs=True):
            return loaded_from(self._read(), self._backend.payloads)

    def _pauses(self) -> Iterator[float]:
        """Poll the flow until it has ended; yield the seconds until the next poll."""
        pause = _FIRST_PAUSE_SECONDS
        while True:
            with contextlib.suppress(exceptions.StorageFailure):
                if self._has_ended():
                    return
                if pause == _MAX_PAUSE_SECONDS:
                    self._check_job_exists()
            yield pause
            pause = min(2 * pause, _MAX_PAUSE_SECONDS)

    def _check_job_exists(self) -> None:
        board = self._board
        try:
            is_gone = (self._job is not None and self._job.state == states.COMPLETE) or (
                isinstance(board, jobs.FlowBoard) and board.is_trashed(self.id)
            )
            if not is_gone:
                return
            parked = _parked_jobs.ParkedJobs.of(board, self._backend)
            if parked is not None and parked.has(self.id):
                return
        except exceptions.JobFailure:  # the board is unavailable: its jobs are unknown
            return
        with contextlib.closing(self._backend.get_connection()) as connection:
            lease = connection.get_lease(self.id)
        is_running = lease is not None and not _owners.is_dead(lease.owner)
        state = self._stored_state()
        # A suspended flow waits to be resumed.
        if not is_running and state not in states.FLOW_ENDED | {states.SUSPENDED}:
            raise exceptions.JobFailure(
                f"Flow {self.id} is {state}, and its job was deleted: the conductor could"
                " not run it; see the log of the conductor"
            )

    def _has_ended(self) -> bool:
        """Return whether the flow has ended, and is not to run again."""
        if self._stored_state() not in states.FLOW_ENDED:
            return False
        # A conductor may begin to carry out a request between two reads.
        return self._request() is None and self._stored_state() in states.FLOW_ENDED

    def _request(self) -> _commands.FlowCommand | None:
        with contextlib.closing(self._backend.get_connection()) as connection:
            return connection.commands([self.id]).get(self.id)

    def _situation(self) -> str:
        request = self._request()
        return f"{self.state}, about to be {request.describe()}" if request else self.state

    def _stored_state(self, detail: models.FlowDetail | None = None) -> str:
        return (detail or self._read(lazy=True)).state or states.PENDING

    def _read(self, lazy: bool = False) -> models.FlowDetail:
        try:
            with contextlib.closing(self._backend.get_connection()) as connection:
                detail = connection.get_flow_details(self.id, lazy=lazy)
        except exceptions.NotFound as error:
            if not self._is_committed:
                raise exceptions.FlowNotCommitted(
                    f"Flow {self.id} is not stored: the transaction in which it was submitted is"
                    " not committed yet or was rolled back, or the flow was deleted",
                    error,
                ) from error
            raise exceptions.FlowDeleted(f"Flow {self.id} was deleted", error) from error
        self._is_committed = True
        return detail

    @contextlib.contextmanager
    def _storing(self, what: str, source: Any) -> Iterator[persistence.Backend]:
        """Yield the backend, or the backend in a transaction of the caller."""
        if not self._is_committed and source is None:
            # A write to an SQLite file would wait for the transaction of the submission.
            self._read(lazy=True)
        try:
            with caller_transactions.joined_backend(self._backend, source, what) as backend:
                yield backend
        except exceptions.NotFound:
            self._read(lazy=True)
            raise

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


class _CommonOptions(TypedDict, total=False):
    """Options of submissions, see `submit`."""

    name: str | None
    priority: jobs.JobPriority | str
    queue: str | None
    fair_key: str | None
    fair_weight: float | None
    eta: datetime | float | None
    unique_for: str | float | None
    tags: Mapping[str, _tags.Value] | None
    undo_until: str | float | None
    board: Board
    connection: Any


class _Options(_CommonOptions, total=False):
    inputs: _loading.Store
    unique: str | None
    debounce: tuple[str, float] | None
    debounce_max: float | None


class _OptionsOfMany(_CommonOptions, total=False):
    unique: Iterable[str] | None


@overload
def submit(
    flow_factory: type[task_module.Workflow[..., _R]],
    factory_args: None = ...,
    factory_kwargs: None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_Options],
) -> FlowHandle[_R]: ...


@overload
def submit(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None = ...,
    factory_kwargs: Mapping[str, Any] | None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_Options],
) -> FlowHandle[Any]: ...


def submit(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: _loading.Backend,
    inputs: _loading.Store = None,
    name: str | None = None,
    priority: jobs.JobPriority | str = jobs.JobPriority.NORMAL,
    queue: str | None = None,
    fair_key: str | None = None,
    fair_weight: float | None = None,
    eta: datetime | float | None = None,
    unique: str | None = None,
    unique_for: str | float | None = None,
    debounce: tuple[str, float] | None = None,
    debounce_max: float | None = None,
    tags: Mapping[str, _tags.Value] | None = None,
    undo_until: str | float | None = None,
    board: Board = None,
    connection: Any = None,
) -> FlowHandle:
    """Submit a flow to a conductor (`wbengine serve`): it is stored when this returns.

    The factory is a function that other processes can import, or its name ('orders:order_flow',
    which may also be a flow). `backend` and `board` (default: the board in the database of
    `backend`) must be those of the conductor. If both use one database, the flow and its job are
    written in one transaction. A store or board that is opened here stays open as long as the
    handle exists.

    :param queue: name of the queue; conductors serve the queue 'default' unless they name others
        (`wbengine serve --queue`).
    :param fair_key: conductors take flows of different keys in turn, for example of tenants. The
        priority decides within a key. Default: the attribute `fair_key` of the flow, or no key.
    :param fair_weight: share of the key, relative to that of others (default: 1).
    :param eta: earliest start: a time with a time zone, or seconds from now.
    :param unique: key; while a flow with this key has not ended, nothing is stored, and the
        returned handle refers to that flow, also with concurrent submissions.
    :param unique_for: time from now for which the key outlives the end of its flow, and its
        deletion: '24h', seconds, or 'forever'.
    :param debounce: key, and seconds from now to the start. Until then, further submissions with
        the key replace this flow, with the same uuid, and its start; after a conductor has claimed
        its job, they create a new flow. Its queue, priority and key are replaced, too.
    :param debounce_max: seconds from the first submission that replacements do not exceed.
    :param undo_until: time from the end of the flow in SUCCESS in which it can be undone: '30d' or
        seconds. Until then, retention and `operations.prune` keep it. Default: no limit, and no
        protection.
    :param connection: a Connection or Session of SQLAlchemy, or a connection of psycopg, sqlite3 or
        Django, to the database of `backend`, in whose present transaction the flow and its job are
        written: they exist if you commit it. The job must be in the database of the flow.
    :raises UniqueKeyConflict: with `unique_for`, if the flow with this key was submitted with
        another factory, other arguments or other inputs.
    :raises ValueError: if the factory cannot be imported elsewhere; if the priority is unknown; if
        `board` belongs to another store, or exists only in this call; if `unique`, `eta`,
        `debounce` or `connection` is given and the job is not in the database of the flow; if
        `queue` or `fair_key` is given and the board stores only priorities; if `debounce` is given
        with `unique` or `eta`; if `connection` is to another database, in autocommit, or in a
        failed transaction.
    :raises MissingDependencies: if inputs are missing.
    :raises Exception: as `engines.load_from_factory`.
    """
    key = _debounce_key(debounce, debounce_max, unique=unique, eta=eta)
    build = functools.partial(
        _new_flows,
        flow_factory,
        [inputs],
        None if factory_args is None else tuple(factory_args),
        factory_kwargs,
        name=name,
        priority=priority,
        queue=queue,
        fair_key=fair_key,
        fair_weight=fair_weight,
        tags=tags,
        undo_until=undo_until,
        unique=None if unique is None else [unique],
        unique_for=unique_for,
    )
    with _Submission(build, backend, board, eta, key, connection is not None) as submission:
        (flow_handle,) = submission.submit(connection)
        return flow_handle


@overload
async def asubmit(
    flow_factory: type[task_module.Workflow[..., _R]],
    factory_args: None = ...,
    factory_kwargs: None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_Options],
) -> FlowHandle[_R]: ...


@overload
async def asubmit(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None = ...,
    factory_kwargs: Mapping[str, Any] | None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_Options],
) -> FlowHandle[Any]: ...


async def asubmit(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: _loading.Backend,
    inputs: _loading.Store = None,
    name: str | None = None,
    priority: jobs.JobPriority | str = jobs.JobPriority.NORMAL,
    queue: str | None = None,
    fair_key: str | None = None,
    fair_weight: float | None = None,
    eta: datetime | float | None = None,
    unique: str | None = None,
    unique_for: str | float | None = None,
    debounce: tuple[str, float] | None = None,
    debounce_max: float | None = None,
    tags: Mapping[str, _tags.Value] | None = None,
    undo_until: str | float | None = None,
    board: Board = None,
    connection: Any = None,
) -> FlowHandle:
    """Submit a flow as `submit` does, in a thread, so that the event loop of asyncio continues.

    If the awaiting task is cancelled, the submission ends first: `CancelledError` is raised when
    the flow is stored completely, or not at all. A repetition with the same `unique` returns the
    handle of a stored flow. The factory is called in the thread, with the context of the caller.

    :param connection: an AsyncConnection or AsyncSession of SQLAlchemy, or a connection of asyncpg.
        If the awaiting task is cancelled, roll the transaction back.
    :raises RuntimeError: outside of an event loop of asyncio.
    :raises Exception: as `submit`.
    """
    key = _debounce_key(debounce, debounce_max, unique=unique, eta=eta)
    build = functools.partial(
        _new_flows,
        flow_factory,
        [inputs],
        None if factory_args is None else tuple(factory_args),
        factory_kwargs,
        name=name,
        priority=priority,
        queue=queue,
        fair_key=fair_key,
        fair_weight=fair_weight,
        tags=tags,
        undo_until=undo_until,
        unique=None if unique is None else [unique],
        unique_for=unique_for,
    )

    def begin() -> _Submission:
        return _Submission(build, backend, board, eta, key, connection is not None)

    def submit_now() -> list[FlowHandle]:
        with begin() as submission:
            return submission.submit(None)

    if connection is None:
        (flow_handle,) = await _async_run.in_thread(submit_now)
        return flow_handle
    with await _async_run.in_thread(begin) as submission:
        while (posted := await caller_connections.run(connection, submission.post)) is None:
            await _async_run.in_thread(submission.rebuild)
        (flow_handle,) = await _async_run.in_thread(functools.partial(submission.handles, posted))
        return flow_handle


@overload
def submit_many(
    flow_factory: type[task_module.Workflow[..., _R]],
    inputs: Iterable[_loading.Store],
    factory_args: None = ...,
    factory_kwargs: None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_OptionsOfMany],
) -> list[FlowHandle[_R]]: ...


@overload
def submit_many(
    flow_factory: _flow_factories.Factory,
    inputs: Iterable[_loading.Store],
    factory_args: Iterable[Any] | None = ...,
    factory_kwargs: Mapping[str, Any] | None = ...,
    *,
    backend: _loading.Backend,
    **options: Unpack[_OptionsOfMany],
) -> list[FlowHandle[Any]]: ...


def submit_many(
    flow_factory: _flow_factories.Factory,
    inputs: Iterable[_loading.Store],
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: _loading.Backend,
    name: str | None = None,
    priority: jobs.JobPriority | str = jobs.JobPriority.NORMAL,
    queue: str | None = None,
    fair_key: str | None = None,
    fair_weight: float | None = None,
    eta: datetime | float | None = None,
    unique: Iterable[str] | None = None,
    unique_for: str | float | None = None,
    tags: Mapping[str, _tags.Value] | None = None,
    undo_until: str | float | None = None,
    board: Board = None,
    connection: Any = None,
) -> list[FlowHandle]:
    """Submit one flow for each element of `inputs`, see `submit`; all are stored on return.

    All flows (and their jobs, if these are in the same database) are written in one transaction:
    much faster than separate calls of `submit`. If this raises, nothing is stored, with one
    exception: if a separate board is unavailable, the flows are stored and will run, as the error
    says.

    :param unique: a key for each flow, as in `submit`. If two flows have the same key, both handles
        refer to the first.
    :raises ValueError: if the number of keys differs from that of `inputs`.
    :raises Exception: as `submit`.
    """
    build = functools.partial(
        _new_flows,
        flow_factory,
        list(inputs),
        None if factory_args is None else tuple(factory_args),
        factory_kwargs,
        name=name,
        priority=priority,
        queue=queue,
        fair_key=fair_key,
        fair_weight=fair_weight,
        tags=tags,
        undo_until=undo_until,
        unique=unique,
        unique_for=unique_for,
    )
    with _Submission(build, backend, board, eta, None, connection is not None) as submission:
        return submission.submit(connection)


def _debounce_key(
    debounce: tuple[str, float] | None,
    debounce_max: float | None,
    **others: object,
) -> DebounceKey | None:
    """Return the key of a submission.

    :raises ValueError: if an option is invalid, or there are others that are not allowed with it.
    """
    key = DebounceKey.of(debounce, debounce_max)
    for name, value in others.items():
        if key is not None and value is not None:
            raise ValueError(f"debounce= does not allow {name}=")
    return key


def _new_flows(
    flow_factory: _flow_factories.Factory,
    inputs: Iterable[_loading.Store],
    factory_args: tuple[Any, ...] | None,
    factory_kwargs: Mapping[str, Any] | None,
    *,
    name: str | None,
    priority: jobs.JobPriority | str,
    queue: str | None,
    fair_key: str | None,
    fair_weight: float | None,
    tags: Mapping[str, _tags.Value] | None,
    undo_until: str | float | None,
    unique: Iterable[str] | None,
    unique_for: str | float | None,
    uuid: str | None = None,
    payloads: Payloads | None = None,
) -> _NewFlows:
    flows, values, places = [], [], []
    all_flow_inputs = [
        each if isinstance(each, _flow_inputs.JsonInputs) else dict(each or {}) for each in inputs
    ]
    place = Place.of(priority, queue, fair_key, fair_weight)
    for flow_inputs in all_flow_inputs:
        new = new_flow(
            flow_factory, factory_args, factory_kwargs,
            inputs=flow_inputs, name=name, tags=tags, undo_until=undo_until, uuid=uuid,
            payloads=payloads,
        )  # fmt: skip
        flows.append((new.detail, new_book(new.detail)))
        values.append(new.inputs)
        places.append(place if fair_key is not None else place._replace(fair_key=new.fair_key))
    if unique is None and unique_for is not None:
        raise ValueError("unique_for= requires unique=")
    names = [] if unique is None else list(unique)
    if unique is not None and len(names) != len(flows):
        raise ValueError(f"unique must contain {len(flows)} keys, got {len(names)}")
    keys = []
    if names:
        factory = _flow_factories.importable_name_of(flow_factory)
        args, kwargs = _flow_factories.read_arguments(factory, factory_args, factory_kwargs)
        keys = [
            UniqueKey.of(
                key,
                unique_for,
                factory,
                args,
                kwargs,
                {name: all_values.get(name, value) for name, value in flow_inputs.items()},
            )
            for key, flow_inputs, all_values in zip(names, all_flow_inputs, values, strict=True)
        ]
    return _NewFlows(flows, values, places, keys)


class _NewFlows(NamedTuple):
    """New flows, each with its logbook, its inputs and its place, and their keys, if any."""

    flows: Sequence[tuple[models.FlowDetail, models.LogBook]]
    inputs: Sequence[Mapping[str, Any]]
    places: Sequence[Place]
    keys: Sequence[UniqueKey]


class _Submission:
    """A submission to an open store and board, which stay open as long as its handles exist.

    Use it as a context manager.

    :param build: returns the flows, also with a uuid for a single one, and with the payloads of the
        backend.
    :param in_transaction: whether `post` gets a connection of the caller.
    """

    def __init__(
        self,
        build: Callable[..., _NewFlows],
        backend: _loading.Backend,
        board: Board,
        eta: datetime | float | None,
        debounce: DebounceKey | None,
        in_transaction: bool,
    ) -> None:
        self._build = build
        self._new = new = build()
        self._eta = eta
        self._debounce = debounce
        # The uuid with which the flow must be built; None: a new one.
        self._uuid: str | None = None
        self._in_transaction = in_transaction
        with contextlib.ExitStack() as failing:
            self._backend, self._board = _open(backend, board, new.inputs, failing, in_transaction)
            if self._backend.payloads is not None:
                self.rebuild()
                new = self._new
            options = {
                "eta": eta is not None,
                "unique": bool(new.keys),
                "debounce": debounce is not None,
                "connection": in_transaction,
            }
            needing = [name for name, is_set in options.items() if is_set]
            if needing and not self._is_one_store:
                raise ValueError(f"{needing[0]}= requires a flow and a job in the same database")
            self._opened = failing.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self._opened.close()

    @property
    def _is_one_store(self) -> bool:
        return isinstance(self._board, impl_sql.SQLJobBoard) and self._board.keeps_flows

    def submit(self, source: Any) -> list[FlowHandle]:
        """Store the flows and their jobs, as `post` does, and return their handles."""
        while (posted := self.post(source)) is None:
            self.rebuild()
        return self.handles(posted)

    def rebuild(self) -> None:
        """Build the flow with the uuid that the latest call of `post` requires."""
        self._new = self._build(uuid=self._uuid, payloads=self._backend.payloads)

    def post(self, source: Any = None) -> Sequence[tuple[str, jobs.Job | None]] | None:
        """Store the flows and their jobs. Return uuids of flows, and their jobs if they are new.

        :param source: a connection of the caller, in whose transaction everything is written.
        :returns: None if nothing was stored: call `rebuild`, and repeat this.
        """
        board, new = self._board, self._new
        if not isinstance(board, impl_sql.SQLJobBoard) or not board.keeps_flows:
            new_jobs = _store_and_post(new.flows, self._backend, board, new.places)
            return [(flow.uuid, job) for (flow, _), job in zip(new.flows, new_jobs, strict=True)]
        assert isinstance(self._backend, _sql.SQLBackend)
        if not self._in_transaction:
            posted = self._post(board, None)
            local_wakeups.of_process().wake(self._backend.options.url)
            return posted
        # In MySQL, the statement that inserts a job locks other jobs of its queue.
        is_mysql = self._backend.options.dialect == dialects.MYSQL
        waits = bool(new.keys) or self._debounce is not None or is_mysql
        with caller_transactions.joined(
            self._backend, source, "Submitting flows", waits=waits
        ) as transaction:
            return self._post(board, transaction)

    def _post(
        self, board: impl_sql.SQLJobBoard, transaction: sa.Connection | None
    ) -> Sequence[tuple[str, jobs.Job | None]] | None:
        new = self._new
        if self._debounce is None:
            return board.post_flows(
                new.flows, new.places, eta=self._eta, keys=new.keys, transaction=transaction
            )
        ((flow, book),), (place,) = new.flows, new.places
        replaces = self._uuid is not None
        self._uuid, is_stored = board.post_debounced(
            flow, book, place, self._debounce, replaces=replaces, transaction=transaction
        )
        return [(flow.uuid, None)] if is_stored else None

    def handles(self, posted: Sequence[tuple[str, jobs.Job | None]]) -> list[FlowHandle]:
        """Return the handles of flows that were posted. Call this once."""
        board = self._board
        if self._is_one_store and isinstance(board, jobs.FlowBoard):
            posted = [(uuid, job or board.find(uuid)) for uuid, job in posted]
        opened = _OpenResources(self._opened)
        return [
            FlowHandle(uuid, self._backend, board, job, opened, not self._in_transaction)
            for uuid, job in posted
        ]


def _store_and_post(
    flows: Sequence[tuple[models.FlowDetail, models.LogBook]],
    backend: persistence.Backend,
    board: jobs.JobBoard,
    places: Sequence[Place],
) -> Sequence[jobs.Job | None]:
    """Store flows, each in its logbook, and then post their jobs on a separate board.

    A flow whose job is not posted yet contains the identity of its board. A conductor that serves
    the board posts the job if this process dies.
    """
    for place in places:
        if isinstance(board, _stored.BaseStoredJobBoard):
            board.check_place(place)
        else:
            place.check_plain()
    if isinstance(board, _stored.BaseStoredJobBoard):
        for (detail, _), place in zip(flows, places, strict=True):
            _stored.note_submitted(detail.meta, board, place)
    if isinstance(backend, _sql.SQLBackend):
        backend.save_new_books([book for _, book in flows])
    else:
        for detail, book in flows:
            persistence.add_flow_detail(detail, book, backend)
    if not isinstance(board, _stored.BaseStoredJobBoard):
        return [
            board.post(detail.name, book, {"flow_uuid": detail.uuid}, place.priority)
            for (detail, book), place in zip(flows, places, strict=True)
        ]
    crashpoint("submit.kept")
    try:
        reposted = board.repost_all(flows, places)
        # A conductor that serves the board may have posted the job first.
        return [
            job or board.find(flow.uuid) for job, (flow, _) in zip(reposted, flows, strict=True)
        ]
    except exceptions.JobFailure as error:
        if len(flows) == 1:
            summary = f"Flow {flows[0][0].uuid} is saved, but its job could not be posted"
        else:
            summary = f"{len(flows)} flows are saved, but not all of their jobs could be posted"
        raise exceptions.JobFailure(
            f"{summary}: {error}. Do not submit again: `wbengine serve` posts missing jobs as soon"
            " as it reaches the board"
        ) from error


class NewFlow(NamedTuple):
    """The record of a new flow, all its inputs, and its key among submitted flows."""

    detail: models.FlowDetail
    inputs: dict[str, Any]
    fair_key: str


def new_flow(
    flow_factory: _flow_factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: _loading.Store,
    tags: Mapping[str, _tags.Value] | None,
    name: str | None = None,
    uuid: str | None = None,
    flows: _allowed.AllowedFlows | None = None,
    payloads: Payloads | None,
    undo_until: str | float | None = None,
) -> NewFlow:
    """Return the record of a new flow that a conductor can run, not stored yet.

    :param payloads: where large inputs are stored; None: in the record.
    :param flows: the allowed factories if the name comes from a store; None: the name comes from
        this program.
    :raises NotTrusted: if the factory is not allowed.
    :raises Exception: as `submit`.
    """
    if flows is not None:
        flows.load(str(flow_factory))
    path, args = importable_factory(flow_factory, factory_args, factory_kwargs)
    engine = _loading.load_submitted(
        path, args, factory_kwargs, inputs, uuid, name, tags, undo_until, payloads
    )
    all_inputs = engine.storage.fetch_all()
    return NewFlow(engine.storage.flow_detail, all_inputs, _fair_key_of(engine.flow, all_inputs))


def _fair_key_of(flow: Any, inputs: Mapping[str, Any]) -> str:
    """Return the key that the flow itself defines, or an empty text."""
    if getattr(flow, "fair_key", None) is None:
        return ""
    function = limit_attributes.function_of(flow, "fair_key")
    what = f"fair_key of flow {flow.name!r}"
    if not callable(function):
        raise TypeError(f"{what} must be a function of its inputs, got {function!r:.80}")
    key = limit_attributes.call_key(function, what, inputs)
    return "" if key is None else check_key(key)


def handle(
    flow_id: str,
    *,
    backend: _loading.Backend,
    board: Board = None,
) -> FlowHandle:
    """Return the handle of a flow that was submitted by any process.

    :raises NotFound: if the backend does not contain the flow.
    """
    with contextlib.ExitStack() as failing:
        open_backend, open_board = _open(backend, board, (), failing)
        job = open_board.find(flow_id) if isinstance(open_board, jobs.FlowBoard) else None
        flow_handle = FlowHandle(flow_id, open_backend, open_board, job, _OpenResources(failing))
        with contextlib.closing(open_backend.get_connection()) as connection:
            connection.get_flow_details(flow_id, lazy=True)
        return flow_handle


class _OpenResources:
    """A store and a board opened for handles; closed with the last of these handles."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        weakref.finalize(self, stack.pop_all().close).atexit = False


def importable_factory(
    factory: _flow_factories.Factory, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[str, Iterable[Any] | None]:
    """Return the name of a factory, and its positional arguments; `FLOW_OF` for a flow.

    :raises TypeError: if it is neither a function nor a name.
    :raises ValueError: if it cannot be imported by name, or is a module, or a flow with arguments.
    """
    name = _flow_factories.importable_name_of(factory)
    loaded = object_names.load(name)
    if isinstance(loaded, types.ModuleType):
        raise ValueError(
            f"{name!r} is a module: name a flow or a function in it, as in '{name}:function'"
        )
    if _flow_factories.is_flow(loaded):
        if args is not None or kwargs is not None:
            raise ValueError(f"{name!r} is a flow and takes no arguments")
        return _flow_factories.FLOW_OF, [name]
    return name, args


def new_book(detail: models.FlowDetail) -> models.LogBook:
    """Return a new logbook with the flow."""
    book = models.LogBook(detail.name)
    book.meta[models.MADE_BY] = "wbengine"
    book.add(detail)
    return book


def _open(
    backend: _loading.Backend,
    board: Board,
    inputs: Iterable[Mapping[str, Any]],
    stack: contextlib.ExitStack,
    needs_tables: bool = False,
) -> tuple[persistence.Backend, jobs.JobBoard]:
    """Return the backend, which must be able to encode these inputs, and the board.

    `stack` closes what is opened here.

    :param needs_tables: whether the tables of a database must exist, and are not created here.
    """
    open_backend = stack.enter_context(_loading.opened_backend(backend))
    if open_backend is None:
        raise TypeError("backend must be given: a Backend, a dict of its options or a URI")
    for values in inputs if open_backend.encodes else ():
        codec.pack(values, "inputs")
    if needs_tables and isinstance(open_backend, _sql.SQLBackend):
        open_backend.check_tables()
    return open_backend, connect_board(board, open_backend, stack)


def connect_board(
    board: Board,
    backend: persistence.Backend,
    stack: contextlib.ExitStack,
) -> jobs.JobBoard:
    """Return the board of a submission, which `stack` closes if it is opened here."""
    if isinstance(board, jobs.JobBoard):
        owner = getattr(board, "persistence", None)
        if owner is not None and not _is_same_store(owner, backend):
            raise ValueError(
                f"board uses flows in {owner!r}, but backend is {backend!r}: its conductors"
                " would not find the flow"
            )
        return board
    if board is None and not isinstance(backend, _sql.SQLBackend):
        raise ValueError(
            f"board= is required: {backend!r} is not a database, so it has no job board"
        )
    opened_board = boards.fetch("submitted", "sql" if board is None else board, persistence=backend)
    stack.enter_context(contextlib.closing(opened_board))
    if isinstance(opened_board, impl_memory.MemoryJobBoard):
        raise ValueError(
            "board='memory' would create a new, unconnected board: pass the board object"
            " of a conductor in this process"
        )
    opened_board.connect()
    return opened_board


def _is_same_store(one: persistence.Backend, other: persistence.Backend) -> bool:
    if one is other:
        return True
    if not (isinstance(one, _sql.SQLBackend) and isinstance(other, _sql.SQLBackend)):
        return False
    return not one.options.in_memory and one.options.url == other.options.url
