"""Tasks of a flow that Celery's workers run."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import datetime as dt
import logging
import signal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import kombu

from wbengine import _binding, _names, atom, exceptions, limits, running
from wbengine._tasks.base import Task
from wbengine.interop.celery.client import addresses, asking, link
from wbengine.interop.celery.client.orders import Order
from wbengine.interop.celery.protocol import errors
from wbengine.types import failure as ft

__all__ = ["CeleryTask"]

LOG: Final = logging.getLogger(__name__)

#: Ids of what is sent again: the first one's, and how often that is.
_AGAIN: Final = uuid.UUID("5b1f0f0a-6a58-4b7e-9f3e-3f1c7f6a2d11")


class CeleryTask(Task):
    """A task that a worker of Celery's runs, wherever the rest of the flow runs.

    ::

        flow.add(
            CeleryTask('proj.tasks.add', 'amqp://', args=('x', 'y'), provides='total'),
            CeleryTask('proj.tasks.report', app, requires='total', timeout=60),
        )

    Its `execute` sends a message of Celery's protocol 2 and waits for the result, which it returns.
    That takes no thread: all tasks of a process that are for the same broker share one connection,
    on every kind of engine, as many as there are.  (A serial engine runs one after the other.)

    The id of the Celery task is that of the run (`Task.request`), so that a resumed flow finds what
    it sent before; see `idempotent`.

    When its flow is reverted or cancelled while it waits, or time is up, the Celery task is
    revoked: a worker that has not begun it does not run it any more.

    What fails in the worker is a `Failure` with the name of the exception as Celery tells it
    (`'proj.errors.Broken'`), its text and the worker's traceback; a retry may match it by that name
    (`retry_on='proj.errors.Broken'`).  Nothing that a message names is imported.  Besides, it may
    fail as `RequestTimeout`, `Expired`, `Cancelled` (somebody revoked it), `WorkerLost`,
    `NotEncodable` (its arguments) or `TransportFailure` (the broker refuses us).

    :param task: the name of the Celery task; or one of Celery's task objects, which knows its app.
    :param app_or_url: the URL of the broker; or a Celery app, from which that, the result backend,
        the queues and the routes are taken.  Celery itself is not needed here.
    :param name: of the atom; by default that of the Celery task.
    :param provides: as for any `Task`; so are `requires`, `rebind` and `inject`.
    :param args: names of arguments that are sent by position, in this order; what else is required,
        rebound or injected is sent by name.
    :param queue: its name, or a `kombu.Queue`; by default as the app's routes say, or `'celery'`.
    :param exchange: where to publish, with `routing_key`, instead of to a queue.
    :param result_backend: `'rpc://'` (the default with a URL) or that of a Redis.
    :param timeout: seconds until the result has to be here; then it is revoked.
    :param expires: seconds, or an aware datetime, after which workers do not begin it any more.
    :param countdown: seconds before which workers do not begin it.
    :param eta: the same, as an aware datetime.
    :param retries: how often it is sent again when it timed out, or its worker was lost; never
        when it failed.
    :param priority: of the message, as the broker understands it.
    :param timelimit: `(soft, hard)` seconds, which the worker keeps.
    :param serializer: of the arguments: 'json', 'yaml', 'msgpack' or 'pickle'.
    :param result_serializer: in which results are; by default as the app says, or 'json', which is
        always read.
    :param ignore_result: do not wait: it succeeds with the id of the Celery task as soon as the
        broker has the message; reverting it revokes that.
    :param revoke_on_revert: False: while it waits, reverting its flow waits for its end; what
        `ignore_result` sent is not revoked.
    :param terminate: revoking also ends what a worker has begun already (prefork pools only), by
        SIGTERM (True) or the signal of this name.
    :param headers: further headers of the message.
    :param shadow: what logs and monitors call it.
    :param idempotent: what becomes of it in a resumed flow, if nobody can tell whether an earlier
        run sent it (see the guide): False: it fails as `WorkerLost`; else it is sent again.
    :raises ValueError: what makes no sense; the text names it, and the nearest that does.
    :raises TypeError: something is of the wrong kind.
    """

    local = True
    detached = True
    cancel_on_revert = True

    def __init__(
        self,
        task: Any,
        app_or_url: Any = None,
        name: str | None = None,
        provides: atom.Provides | None = None,
        requires: str | Iterable[str] | None = None,
        rebind: _binding.Rebind | None = None,
        inject: Mapping[str, Any] | None = None,
        *,
        args: str | Sequence[str] = (),
        queue: str | kombu.Queue | None = None,
        exchange: str | None = None,
        routing_key: str | None = None,
        result_backend: str | None = None,
        timeout: float | None = None,
        expires: float | dt.datetime | None = None,
        countdown: float | None = None,
        eta: dt.datetime | None = None,
        retries: int = 0,
        priority: int | None = None,
        timelimit: tuple[float | None, float | None] | float | None = None,
        serializer: str | None = None,
        result_serializer: str | None = None,
        ignore_result: bool = False,
        revoke_on_revert: bool = True,
        terminate: bool | str = False,
        headers: Mapping[str, Any] | None = None,
        shadow: str | None = None,
        idempotent: bool | None = None,
    ) -> None:
        word, app_or_url = _named(task, app_or_url)
        self._args = _binding.names_of(args)
        if len(set(self._args)) < len(self._args):
            raise ValueError(f"an argument of task {word!r} is named twice: args={args!r}")
        names = self._asked(requires, rebind, inject)
        mapped = None if rebind is None else _binding.rebind_map(names, rebind)
        name = word if name is None else name
        super().__init__(name, provides, names, rebind=mapped, inject=inject)
        self._options = asking.Options(
            word, expires, countdown, eta, priority,
            limits.read(timelimit, f"the timelimit of task {word!r}"),
            serializer or _serializer_of(app_or_url), ignore_result, shadow,
            {} if headers is None else copy.copy(headers),
        )  # fmt: skip
        self._address = addresses.address_of(app_or_url, result_backend, result_serializer)
        if not ignore_result:
            _check_answers(word, self._address)
        self._route = addresses.route_of(app_or_url, word, queue, exchange, routing_key)
        self._timeout = _seconds(timeout)
        self._retries = _count(retries)
        self.cancel_on_revert = bool(revoke_on_revert)
        self._signal = _signal(terminate)
        self.idempotent = idempotent

    def _asked(self, requires: Any, rebind: Any, inject: Any) -> tuple[str, ...]:
        """The names of all arguments, those by position first."""
        names = dict.fromkeys((*self._args, *_binding.names_of(requires)))
        if isinstance(rebind, Mapping):
            names.update(dict.fromkeys(rebind))
            taken = set(rebind.values())
        else:
            taken = set(rebind or ())
        names.update((name, None) for name in inject or () if name not in taken)
        return tuple(names)

    async def execute(self, **kwargs: Any) -> Any:
        request = self.request
        first = str(uuid.uuid4()) if request is None else request.id
        recovered = request is not None and request.recovered
        way = link.link_to(self._address)
        reply_to = None if self._address.stores or self._options.ignore_result else way.reply_to
        args = [kwargs.pop(name) for name in self._args]
        value: Any = None
        for number in range(self._retries + 1):
            name = first if number == 0 else str(uuid.uuid5(_AGAIN, f"{first}|{number}"))
            wire = self._options.wire(name, args, kwargs, reply_to)
            if running.tying is not None:
                running.tying(wire.headers)
            value = await self._once(way, name, wire, recovered)
            lost = (exceptions.RequestTimeout, exceptions.WorkerLost)
            if not (isinstance(value, ft.Failure) and value.check(*lost)):
                break
            if number < self._retries:
                LOG.warning("Celery task %s (%s) is sent again: %s", name, self.name, value)
        return value

    async def revert(self, result: Any) -> None:
        """Revoke what nobody waited for; all else has ended, or was revoked when it was left."""
        if self._options.ignore_result and self.cancel_on_revert and isinstance(result, str):
            link.link_to(self._address).revoke(result, self._signal)

    async def _once(self, way: link.Link, name: str, wire: Any, recovered: bool) -> Any:
        """Send it, and wait: the result, or the `Failure` it ended with."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any) -> None:
            if not told.done():
                told.set_result(value)

        def tell(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value)

        waits, again = not self._options.ignore_result, self.idempotent is not False
        order = Order(name, wire, self._route, tell, waits, recovered, again)
        way.ask(order)
        try:
            value = await asyncio.wait_for(told, self._timeout)
        except asyncio.TimeoutError:
            fate = way.fate(order)
            way.drop(order, True, self._signal)
            text = f"Celery task {name} ({self.name}) did not end within {self._timeout:g} s"
            text = f"{text}: {fate}" if fate else text
            return ft.Failure.from_exception(exceptions.RequestTimeout(text))
        except BaseException:  # cancelled, or out of time
            request = self.request
            way.drop(order, request is None or not request.left, self._signal)
            raise
        return self._read(value) if isinstance(value, dict) else value

    def _read(self, meta: Mapping[str, Any]) -> Any:
        """What a result of Celery's comes to."""
        if meta["status"] == "SUCCESS":
            return meta.get("result")
        failure = errors.failure_of(meta)
        if meta["status"] == "REVOKED":
            what = f"Celery task {meta.get('task_id')} ({self.name})"
            error: exceptions.ExecutionFailure
            if failure.exception_str == "expired":
                error = exceptions.Expired(f"{what} expired before a worker began it")
            else:
                error = exceptions.Cancelled(f"{what} was {failure.exception_str or 'revoked'}")
            return ft.Failure.from_exception(error)
        return failure


def _named(task: Any, app_or_url: Any) -> tuple[str, Any]:
    """The name of a Celery task, and where it is to be sent."""
    if not isinstance(task, str):
        app_or_url = getattr(task, "app", None) if app_or_url is None else app_or_url
        name = getattr(task, "name", None)
        if not isinstance(name, str):
            raise TypeError(f"task must be the name of a Celery task, not {task!r:.80}")
        task = name
    if not task:
        raise ValueError("The name of a Celery task must not be empty")
    if app_or_url is None:
        raise TypeError(f"CeleryTask {task!r} needs app_or_url: the URL of a broker, or an app")
    return task, app_or_url


def _check_answers(word: str, address: addresses.Address) -> None:
    if not address.answers:
        raise ValueError(
            f"nobody would tell what becomes of {word!r}, for the app has no result backend:"
            " give result_backend, or ignore_result=True"
        )


def _serializer_of(app_or_url: Any) -> str:
    conf = None if isinstance(app_or_url, str) else getattr(app_or_url, "conf", None)
    return str(getattr(conf, "task_serializer", None) or "json")


def _signal(terminate: bool | str) -> str | None:
    name = "SIGTERM" if terminate is True else terminate or None
    if name is not None and name not in signal.Signals.__members__:
        near = _names.hint(str(name), signal.Signals.__members__)
        raise ValueError(f"terminate must be True, or the name of a signal, not {name!r}{near}")
    return name


def _seconds(value: Any) -> float | None:
    if value is None:
        return None
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ValueError(f"timeout must be seconds above 0, not {value!r}")
    return float(value)


def _count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError(f"retries must be a number from 0, not {value!r}")
    return value
