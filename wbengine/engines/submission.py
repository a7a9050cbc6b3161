"""Submitted flows: kept with a job for those who conduct, and watched from where they were made."""

from __future__ import annotations

import asyncio
import contextlib
import time
import types
import uuid
import weakref
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, Final

from wbengine import _codec, _json_text, _names, exceptions, signals, states
from wbengine._crash import crashpoint
from wbengine.engines import allowed, async_run, base, factories, flow_errors, loading
from wbengine.jobs import backends as boards
from wbengine.jobs import base as jobs
from wbengine.jobs import stored
from wbengine.jobs.backends import impl_memory, impl_sql
from wbengine.persistence import base as persistence
from wbengine.persistence import commands, lease_renewer, leases, models, owners
from wbengine.persistence.backends import sql
from wbengine.runtime import control
from wbengine.storage import Storage

__all__ = ["FlowHandle", "handle", "new_book", "new_flow", "submit", "submit_many"]


#: A job board, or what `jobs.backends.fetch` takes; None: that in the database of the flows.
Board = jobs.JobBoard | Mapping[str, Any] | str | None

#: The namespace of the uuids of the log books that stand for keys.
_KEYS: Final = uuid.uuid5(uuid.NAMESPACE_URL, "wbengine:unique")

#: Seconds between two looks at a flow, at first and at most.
_FIRST: Final = 0.01
_LONGEST: Final = 0.5


class FlowHandle:
    """A submitted flow, wherever it runs; any thread may call its methods.

    `id` is its uuid.  With `await`, it is what `result` returns.
    """

    def __init__(
        self,
        id: str,
        backend: persistence.Backend,
        board: jobs.JobBoard,
        job: jobs.Job | None = None,
        opened: object = None,
    ) -> None:
        self.id: Final = id
        self._opened = opened
        self._backend = backend
        self._board = board
        self._job = job

    @property
    def state(self) -> str:
        """The state that is stored: PENDING before it was begun.

        :raises NotFound: it is not kept any more.
        """
        return self._read(lazy=True).state or states.PENDING

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it has ended, for `timeout` seconds at most; whether it has.

        A store that is away is waited for.

        :raises JobFailure: its job is gone, and no engine runs it: it was not to be run as it is
            (the log of the conductor says why).
        :raises NotFound: it is not kept any more.
        """
        base.check_seconds("timeout", timeout)
        until = None if timeout is None else time.monotonic() + timeout
        for pause in self._pauses():
            left = pause if until is None else until - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(pause, left))
        return True

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until it has ended; all its values by name, as `engines.run` returns them.

        What made the flow is called, to know which values there are.

        :raises TimeoutError: it has not ended in time.
        :raises Cancelled: it was cancelled.
        :raises Exception: what the flow failed with, or what `wait` raises.
        """
        if not self.wait(timeout):
            raise TimeoutError(f"Flow {self.id} has not ended within {timeout:g} s: {self.state}")
        detail = self._read()
        if detail.state != states.SUCCESS:
            flow_errors.raise_recorded(Storage(detail))
        engine = loading.load_from_detail(detail)  # of the copy that was read: nothing is written
        engine.prepare()
        return engine.storage.fetch_all()

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self._result().__await__()

    async def _result(self) -> dict[str, Any]:
        pauses = self._pauses()
        while (pause := await async_run.in_thread(lambda: next(pauses, None))) is not None:
            await asyncio.sleep(pause)
        return await async_run.in_thread(self.result)

    def cancel(self, reason: str | None = None) -> bool:
        """Let it end, and revert what it did; False: it has ended already.  Does not wait.

        The engine that runs it is told (it looks each second); one that has not begun, or is
        between two engines, is ended by the conductor that takes it next; no `eta` is waited for.
        """
        command = commands.FlowCommand(commands.CANCEL, reason, None, time.time())
        command.check()
        while True:
            with contextlib.closing(self._backend.get_connection()) as connection:
                if connection.get_flow_details(self.id, lazy=True).state in states.FLOW_ENDED:
                    return False
                with contextlib.suppress(exceptions.InvalidState):
                    connection.send_command(self.id, command)
                    return True
                with contextlib.suppress(exceptions.FlowBusy):  # an engine took it meanwhile
                    return self._cancel_now(connection, reason)
            time.sleep(_FIRST)

    def signal(self, name: str, value: Any = None) -> None:
        """Give the flow a signal, for the tasks that wait for it (`task.WaitFor`), now or later.

        :raises NotFound: it is not kept, or none of its tasks waits for such a signal.  (Before
            the flow has begun any name is taken.)
        :raises InvalidState: it has ended.
        :raises Duplicate: it was given this signal before.
        :raises NotEncodable: the value cannot be sent, or is too long.
        :raises TypeError, ValueError: the name can be none.
        """
        made = signals.Signal.of(name, value, time.time())
        lease_renewer.send_signal(self._backend, self.id, made)

    def _cancel_now(self, connection: persistence.Connection, reason: str | None) -> bool:
        """Note in a flow that no engine runs that it is cancelled; False: it has ended.

        Under a lease: an engine may have come, and gone, since it was read last.

        :raises FlowBusy: an engine runs it.
        """
        owner = owners.new(momentary=True)
        try:
            lease = connection.take_lease(self.id, str(owner), leases.LEASE_SECONDS)
            try:
                detail = connection.get_flow_details(self.id, lazy=True)
                if detail.state in states.FLOW_ENDED:
                    return False
                why = control.GivenUp(True, reason)
                detail.meta[why.key] = why.record(time.time())
                connection.save_changes(detail, (), lease=lease)
                connection.hasten_job(self.id)
                return True
            finally:
                connection.give_back_lease(lease)
        finally:
            owner.let_go()

    def _pauses(self) -> Iterator[float]:
        """Look at the flow until it has ended; seconds until the next look."""
        pause = _FIRST
        while True:
            with contextlib.suppress(exceptions.StorageFailure):  # it may come back
                if self.state in states.FLOW_ENDED:
                    return
                if pause == _LONGEST:
                    self._check_not_given_up()
            yield pause
            pause = min(2 * pause, _LONGEST)

    def _check_not_given_up(self) -> None:
        board = self._board
        try:
            gone = (self._job is not None and self._job.state == states.COMPLETE) or (
                isinstance(board, jobs.FlowBoard) and board.is_trashed(self.id)
            )
        except exceptions.JobFailure:  # the board is away: that cannot be told
            return
        if not gone:
            return
        with contextlib.closing(self._backend.get_connection()) as connection:
            lease = connection.get_lease(self.id)
        is_run = lease is not None and not owners.died(lease.owner)
        state = self.state
        # One that was suspended waits to be resumed.
        if not is_run and state not in states.FLOW_ENDED | {states.SUSPENDED}:
            raise exceptions.JobFailure(
                f"Flow {self.id} is in {state}, and its job is gone: the conductor could not"
                " run it, and its log says why"
            )

    def _read(self, lazy: bool = False) -> models.FlowDetail:
        with contextlib.closing(self._backend.get_connection()) as connection:
            return connection.get_flow_details(self.id, lazy=lazy)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"


def submit(
    flow_factory: factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: loading.Backend,
    inputs: loading.Store = None,
    name: str | None = None,
    priority: jobs.JobPriority | str = jobs.JobPriority.NORMAL,
    eta: datetime | float | None = None,
    unique: str | None = None,
    tags: Mapping[str, str] | None = None,
    board: Board = None,
) -> FlowHandle:
    """Hand a flow over to a conductor (`wbengine serve`): it is kept when this returns.

    The factory is a function that other processes can import, or its name ('orders:order_flow',
    which may also be a flow).  `backend` and `board` (default: that in the database of `backend`)
    are those of the conductor; where both are in one database, the flow and its job are one
    transaction.  One that is opened here, of a URI, stays open while the handle lives.

    :param eta: it does not begin before: a moment with a time zone, or seconds from now.
    :param unique: while a flow of this key has not ended, nothing is kept, and the handle is that
        flow's; also where many submit at once.
    :raises ValueError: the factory cannot be imported elsewhere; there is no such priority;
        `board` is that of another store's flows, or of this call alone; `unique` or `eta` is
        given, and the job is not in the database of the flow.
    :raises MissingDependencies: inputs are missing.
    :raises Exception: what `engines.load_from_factory` raises.
    """
    detail, given = new_flow(
        flow_factory, factory_args, factory_kwargs, inputs=inputs, name=name, tags=tags
    )
    book = new_book(detail, unique)
    if unique is None:
        (made,) = _submit([(detail, book)], [given], backend, board, priority, eta)
        return made
    priority = jobs.JobPriority.convert(priority)
    with contextlib.ExitStack() as failing:
        kept, posted = _opened(backend, board, [given], failing)
        if not (isinstance(posted, impl_sql.SQLJobBoard) and posted.keeps_flows):
            raise ValueError("unique= needs the flow and its job in one database")
        found = posted.post_flow(detail.name, book, detail, priority, eta=eta)
        assert found is not None
        if isinstance(found, str):
            return FlowHandle(found, kept, posted, posted.find(found), _Opened(failing))
        return FlowHandle(detail.uuid, kept, posted, found, _Opened(failing))


def submit_many(
    flow_factory: factories.Factory,
    inputs: Iterable[loading.Store],
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    backend: loading.Backend,
    name: str | None = None,
    priority: jobs.JobPriority | str = jobs.JobPriority.NORMAL,
    eta: datetime | float | None = None,
    tags: Mapping[str, str] | None = None,
    board: Board = None,
) -> list[FlowHandle]:
    """Hand over one flow for each of `inputs`: all are kept when this returns; see `submit`.

    That is one transaction for all flows (and their jobs, if these are in the same database), and
    one step of a board in Redis: much faster than as many calls of `submit`.  Where it raises in
    between, none is kept; those of a board elsewhere that could not be asked are kept and will be
    run, as the error says.

    :raises Exception: what `submit` raises.
    """
    args = None if factory_args is None else tuple(factory_args)
    flows, values = [], []
    for one in inputs:
        detail, given = new_flow(
            flow_factory, args, factory_kwargs, inputs=one, name=name, tags=tags
        )
        flows.append((detail, new_book(detail)))
        values.append(given)
    return _submit(flows, values, backend, board, priority, eta)


def _submit(
    flows: Sequence[tuple[models.FlowDetail, models.LogBook]],
    inputs: Iterable[Mapping[str, Any]],
    backend: loading.Backend,
    board: Board,
    priority: jobs.JobPriority | str,
    eta: datetime | float | None,
) -> list[FlowHandle]:
    """Keep flows, each in a new book, with their jobs."""
    priority = jobs.JobPriority.convert(priority)
    with contextlib.ExitStack() as failing:
        kept, posted = _opened(backend, board, inputs, failing)
        made: Sequence[jobs.Job | None]
        if isinstance(posted, impl_sql.SQLJobBoard) and posted.keeps_flows:
            made = posted.post_flows(flows, priority, eta=eta)
        elif eta is not None:
            raise ValueError("eta= needs the flow and its job in one database")
        else:
            made = _keep_and_post(flows, kept, posted, priority)
        opened = _Opened(failing)
        return [
            FlowHandle(detail.uuid, kept, posted, job, opened)
            for (detail, _), job in zip(flows, made, strict=True)
        ]


def _keep_and_post(
    flows: Sequence[tuple[models.FlowDetail, models.LogBook]],
    kept: persistence.Backend,
    board: jobs.JobBoard,
    priority: jobs.JobPriority,
) -> Sequence[jobs.Job | None]:
    """Keep flows, each in its book, and then post their jobs on a board that is elsewhere.

    In between, a flow says on which board its job is to be: whoever serves that posts it.
    """
    if isinstance(board, stored.StoredJobBoard):
        for detail, _ in flows:
            stored.note_submitted(detail.meta, board, priority)
    if isinstance(kept, sql.SQLBackend):
        kept.keep_new_books([book for _, book in flows])
    else:
        for detail, book in flows:
            persistence.keep_flow_detail(detail, book, kept)
    if not isinstance(board, stored.StoredJobBoard):
        return [
            board.post(detail.name, book, {"flow_uuid": detail.uuid}, priority)
            for detail, book in flows
        ]
    crashpoint("submit.kept")
    try:
        made = board.repost_all(flows, priority)
        # Whoever serves the board may have posted one before.
        return [job or board.find(flow.uuid) for job, (flow, _) in zip(made, flows, strict=True)]
    except exceptions.JobFailure as error:
        which = f"Flow {flows[0][0].uuid} is" if len(flows) == 1 else f"{len(flows)} flows are"
        raise exceptions.JobFailure(
            f"{which} kept, and will be run, though no job could be posted: `wbengine serve` posts"
            f" what is missing ({error})"
        ) from error


def new_flow(
    flow_factory: factories.Factory,
    factory_args: Iterable[Any] | None = None,
    factory_kwargs: Mapping[str, Any] | None = None,
    *,
    inputs: loading.Store,
    tags: Mapping[str, str] | None,
    name: str | None = None,
    uuid: str | None = None,
    flows: allowed.AllowedFlows | None = None,
) -> tuple[models.FlowDetail, dict[str, Any]]:
    """The record of a flow that a conductor can run, which is not kept yet, and its inputs.

    :param flows: what may be called, where a store says what is; None: this program does.
    :raises NotTrusted: it must not be called.
    :raises Exception: what `submit` raises.
    """
    if flows is not None:
        flows.load(str(flow_factory))
    path, args = _importable(flow_factory, factory_args, factory_kwargs)
    made = loading.load_from_factory(
        path, args, factory_kwargs, inputs=inputs, name=name, tags=tags, uuid=uuid
    )
    detail = made.storage.flow_detail.copy()
    given = made.storage.fetch_all()
    made.prepare()
    made.validate()
    return detail, given


def handle(
    flow_id: str,
    *,
    backend: loading.Backend,
    board: Board = None,
) -> FlowHandle:
    """The handle of a flow that was submitted, in this process or in another one.

    :raises NotFound: the backend keeps no such flow.
    """
    with contextlib.ExitStack() as failing:
        kept, posted = _opened(backend, board, (), failing)
        job = posted.find(flow_id) if isinstance(posted, jobs.FlowBoard) else None
        found = FlowHandle(flow_id, kept, posted, job, _Opened(failing))
        _ = found.state  # it is kept
        return found


class _Opened:
    """A store and a board that were opened for handles: closed when the last of these is gone."""

    def __init__(self, stack: contextlib.ExitStack) -> None:
        weakref.finalize(self, stack.pop_all().close).atexit = False


def _importable(
    factory: factories.Factory, args: Iterable[Any] | None, kwargs: Mapping[str, Any] | None
) -> tuple[str, Iterable[Any] | None]:
    """The name of what makes the flow, and its arguments.

    :raises ValueError: another process cannot import it.
    """
    name = factories.name_of(factory)
    if name.startswith(("__main__.", "__main__:")):
        raise ValueError(
            f"Flow factory {name!r} is in the program that runs, which no other process can import:"
            " put it into a module"
        )
    found = _names.load(name)
    if isinstance(found, types.ModuleType):
        raise ValueError(f"{name!r} is a module: what makes a flow is named as '{name}:function'")
    if factories.is_flow(found):
        if args is not None or kwargs is not None:
            raise ValueError(f"{name!r} is a flow, which takes no arguments")
        return factories.FLOW_OF, [name]
    return name, args


def new_book(detail: models.FlowDetail, key: str | None = None) -> models.LogBook:
    """The new book of the flow, or that of a key."""
    if key is None:
        book = models.LogBook(f"{detail.name} book")
    elif isinstance(key, str) and key and _json_text.is_text(key):
        book = models.LogBook(key, str(uuid.uuid5(_KEYS, key)))
        book.meta[models.UNIQUE] = detail.uuid
    else:
        raise ValueError(f"unique={key!r} is no text with something in it")
    book.meta[models.MADE_BY] = "wbengine"
    book.add(detail)
    return book


def _opened(
    backend: loading.Backend,
    board: Board,
    inputs: Iterable[Mapping[str, Any]],
    stack: contextlib.ExitStack,
) -> tuple[persistence.Backend, jobs.JobBoard]:
    """The backend that is meant, which can keep these inputs, and the board; `stack` closes what is
    opened.
    """
    kept = stack.enter_context(loading.lent(backend))
    if kept is None:
        raise TypeError("backend must be given: a Backend, a dict of its options or a URI")
    for given in inputs if kept.encodes else ():
        _codec.pack(given, "inputs")
    return kept, _connected(board, kept, stack)


def _connected(
    board: Board,
    kept: persistence.Backend,
    stack: contextlib.ExitStack,
) -> jobs.JobBoard:
    """The board that is meant, connected; `stack` closes one that is opened."""
    if isinstance(board, jobs.JobBoard):
        theirs = getattr(board, "persistence", None)
        if theirs is not None and not _is_same(theirs, kept):
            raise ValueError(
                f"board= is that of conductors whose flows are in {theirs!r}, not in {kept!r}:"
                " they would not find the flow"
            )
        return board
    if board is None and not isinstance(kept, sql.SQLBackend):
        raise ValueError(f"board= is needed: {kept!r} is no database, which would have one")
    made = boards.fetch("submitted", "sql" if board is None else board, persistence=kept)
    stack.enter_context(contextlib.closing(made))
    if isinstance(made, impl_memory.MemoryJobBoard):
        raise ValueError(
            "board='memory' would be a board of this call alone: give the board object that a"
            " conductor of this process has"
        )
    made.connect()
    return made


def _is_same(one: persistence.Backend, other: persistence.Backend) -> bool:
    """Whether two backends keep their flows in one place."""
    if one is other:
        return True
    if not (isinstance(one, sql.SQLBackend) and isinstance(other, sql.SQLBackend)):
        return False
    return not one.options.in_memory and one.options.url == other.options.url
