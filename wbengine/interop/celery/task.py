"""Tasks of a flow that Celery's workers run."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
import logging
import signal
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import kombu

from wbengine import _binding, _names, atom, exceptions, running
from wbengine._tasks.base import Task
from wbengine.concurrency import limits
from wbengine.interop.celery import protocol, publisher, results, serializers
from wbengine.types import failure as ft

__all__ = ["CeleryTask"]

LOG: Final = logging.getLogger(__name__)

#: Ids of tasks that are sent again: the first one's, and how often that is.
_AGAIN: Final = uuid.UUID("5b1f0f0a-6a58-4b7e-9f3e-3f1c7f6a2d11")
_FURTHEST: Final = 10 * 365 * 86400.0


class CeleryTask(Task):
    """A task that a worker of Celery's runs, wherever the rest of the flow runs.

    ::

        flow.add(
            CeleryTask('proj.tasks.add', 'amqp://', args=('x', 'y'), provides='total'),
            CeleryTask('proj.tasks.report', app, requires='total', timeout=60),
        )

    Its `execute` sends a message of Celery's protocol 2 and waits for the result, which it returns.
    That takes no thread: all tasks of a process that are for the same broker share one publisher
    and one reader of results, on every kind of engine, as many as there are.  (A serial engine runs
    one after the other.)

    The id of the Celery task is that of the run (`Task.request`), so that a resumed flow finds what
    it sent before; see `idempotent`.  Its `root_id` and `parent_id` are the uuid of the flow.

    When its flow is reverted or cancelled while it waits, or time is up, the Celery task is
    revoked: a worker that has not begun it does not run it any more.

    A failure in the worker is a `Failure` with the name of the exception as Celery tells it
    (`'proj.errors.Broken'`), its text and the worker's traceback; a retry may match it by that name
    (`retry_on='proj.errors.Broken'`).  Nothing that a message names is imported.  Besides, it may
    fail as `RequestTimeout`, `Expired`, `Cancelled` (it was revoked by others), `WorkerLost`,
    `NotEncodable` (its arguments) or `TransportFailure` (the broker refuses us).

    :param task: the name of the Celery task; or one of Celery's task objects, which knows its app.
    :param app_or_url: the URL of the broker; or a Celery app, from which that, the result backend,
        the queues and the routes are taken.  Celery itself is not needed here.
    :param name: of the atom; by default that of the Celery task.
    :param provides: as for any `Task`; so are `requires`, `rebind` and `inject`.
    :param args: names of arguments that are sent by position, in this order; all else that is
        required, rebound or injected is sent by name.
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
    :param revoke_on_revert: False: while it waits, reverting its flow waits for its end; a task
        sent with `ignore_result` is not revoked.
    :param terminate: revoking also ends a task that a worker has begun already (prefork pools
        only), by SIGTERM (True) or the signal of this name.
    :param headers: further headers of the message.
    :param shadow: its name in logs and monitors.
    :param idempotent: what becomes of it in a resumed flow, if it is unknown whether an earlier
        run sent it (see the guide): False: it fails as `WorkerLost`; else it is sent again.
    :raises ValueError: an option makes no sense; the text names it, and the nearest that does.
    :raises TypeError: an option is of the wrong kind.
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
        super().__init__(
            word if name is None else name, provides, names, rebind=mapped, inject=inject
        )
        self._address = publisher.address_of(app_or_url, result_backend, result_serializer)
        if self._address.backend == publisher.DISABLED and not ignore_result:
            raise ValueError(
                f"nothing would tell what becomes of {word!r}, for the app has no result backend:"
                " give result_backend, or ignore_result=True"
            )
        self._route = publisher.route_of(app_or_url, word, queue, exchange, routing_key)
        conf = getattr(app_or_url, "conf", None)
        self._serializer = serializer or getattr(conf, "task_serializer", None) or "json"
        serializers.mime_type(self._serializer)
        limit = limits.read(timelimit, f"the timelimit of task {word!r}")
        if not (shadow is None or isinstance(shadow, str)):
            raise TypeError(f"shadow must be a name, not {shadow!r}")
        if not isinstance(headers, Mapping | None) or any(
            type(n) is not str for n in headers or ()
        ):
            raise TypeError(f"headers must be a mapping of names, not {headers!r:.80}")
        if priority is not None and (type(priority) is not int or not 0 <= priority <= 255):
            raise ValueError(f"priority must be a number from 0 to 255, not {priority!r}")
        #: What all messages have in common.
        self._message = protocol.TaskMessage(
            word, "", timelimit=limit, shadow=shadow, ignore_result=ignore_result,
            priority=priority, extra=dict(headers or {}),
        )  # fmt: skip
        if countdown is not None and eta is not None:
            raise ValueError(f"task {word!r} is given both countdown and eta: give one")
        self._eta = _when("countdown", countdown, float) or _when("eta", eta, dt.datetime)
        self._expires = _when("expires", expires, float, dt.datetime)
        self._timeout = _when("timeout", timeout, float)
        if self._timeout == 0:
            raise ValueError(f"timeout must be seconds above 0, not {timeout!r}")
        if type(retries) is not int or retries < 0:
            raise ValueError(f"retries must be a number from 0, not {retries!r}")
        self._retries = retries
        self.cancel_on_revert = bool(revoke_on_revert)
        self._signal = "SIGTERM" if terminate is True else terminate or None
        known = signal.Signals.__members__
        if self._signal not in (None, *known):
            near = _names.hint(str(terminate), known)
            raise ValueError(
                f"terminate must be True or the name of a signal, not {terminate!r}{near}"
            )
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
        args = [kwargs.pop(name) for name in self._args]
        value: Any = None
        for number in range(self._retries + 1):
            name = first if number == 0 else str(uuid.uuid5(_AGAIN, f"{first}|{number}"))
            value = await self._once(name, args, kwargs)
            lost = (exceptions.RequestTimeout, exceptions.WorkerLost)
            if not (isinstance(value, ft.Failure) and value.check(*lost)):
                break
            if number < self._retries:
                LOG.warning("Celery task %s (%s) is sent again: %s", name, self.name, value)
        return value

    async def revert(self, result: Any) -> None:
        """Revoke what was not waited for; all else has ended, or was revoked when it was left."""
        if self._message.ignore_result and self.cancel_on_revert and isinstance(result, str):
            self._address.publisher().revoke(result, self._signal)

    def _wire(self, id: str, args: Sequence[Any], kwargs: Any, reply_to: str | None) -> Any:
        """A message that asks for the task now."""
        now, request = dt.datetime.now(dt.timezone.utc), self.request
        flow = None if request is None else request.flow_uuid or None
        message = dataclasses.replace(
            self._message, id=id, args=tuple(args), kwargs=dict(kwargs), reply_to=reply_to,
            eta=_after(now, self._eta), expires=_after(now, self._expires),
            root_id=flow or id, parent_id=flow, origin=publisher.hostname(),
        )  # fmt: skip
        wire = protocol.encode(message, 2, self._serializer)
        if running.tying is not None:
            running.tying(wire.headers)
        return wire

    async def _once(self, id: str, args: Sequence[Any], kwargs: Any) -> Any:
        """Send it, and wait: the result, or the `Failure` it ended with."""
        loop = asyncio.get_running_loop()
        told: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any) -> None:
            if not told.done():
                told.set_result(value)

        def tell(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value)

        waits = not self._message.ignore_result
        posts, reader = self._address.publisher(), self._address.reader()
        if not waits and isinstance(reader, results.RpcReader):
            reader = None
        reply_to = reader.queue.name if isinstance(reader, results.RpcReader) else None
        request = self.request
        message = publisher.OutgoingTask(
            id, self._wire(id, args, kwargs, reply_to), self._route, reader,
            waits, tell, recovered=request is not None and request.recovered,
            again=self.idempotent is not False,
        )  # fmt: skip
        if waits and reader is not None:
            reader.expect(id, tell)
        posts.send(message)
        try:
            value = await asyncio.wait_for(told, self._timeout)
        except asyncio.TimeoutError:
            fate = posts.fate(message)
            posts.drop(message, True, self._signal)
            text = f"Celery task {id} ({self.name}) did not end within {self._timeout:g} s"
            text = f"{text}: {fate}" if fate else text
            return ft.Failure.from_exception(exceptions.RequestTimeout(text))
        except BaseException:  # cancelled, or out of time
            request = self.request
            posts.drop(message, request is None or not request.left, self._signal)
            raise
        finally:
            message.dropped.set()  # its result may come before the broker confirms it
            if reader is not None:
                reader.forget(id)
        return self._value(value) if isinstance(value, protocol.Result) else value

    def _value(self, result: protocol.Result) -> Any:
        """What a result of Celery's comes to."""
        if result.status == "SUCCESS":
            return result.result
        failure = results.failure_of(result)
        if result.status != "REVOKED":
            return failure
        text = f"Celery task {result.task_id} ({self.name})"
        if failure.exception_str == "expired":
            error: Exception = exceptions.Expired(f"{text} expired before a worker began it")
        else:
            error = exceptions.Cancelled(f"{text} was {failure.exception_str or 'revoked'}")
        return ft.Failure.from_exception(error)


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


def _when(name: str, value: Any, *kinds: type) -> Any:
    """Seconds, or a moment; None if there is none."""
    if value is None:
        return None
    if isinstance(value, dt.datetime) and dt.datetime in kinds:
        if value.tzinfo is None:
            raise ValueError(f"{name} needs a time zone: {value!r} has none")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or float not in kinds:
        known = {float: "seconds", dt.datetime: "a datetime with a time zone"}
        raise TypeError(f"{name} must be {' or '.join(known[one] for one in kinds)}, not {value!r}")
    if not 0 <= value < _FURTHEST:
        raise ValueError(f"{name} must be seconds from 0, not {value!r}")
    return float(value)


def _after(now: dt.datetime, when: dt.datetime | float | None) -> dt.datetime | None:
    return now + dt.timedelta(seconds=when) if isinstance(when, float) else when
