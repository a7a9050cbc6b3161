"""Tasks of a flow that run on Celery workers."""

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

from wbengine import atom, exceptions, running
from wbengine._concurrency import time_limits
from wbengine._introspection import binding, object_names
from wbengine._tasks.base import Task
from wbengine.interop.celery import _protocol, _publisher, _results, _serializers
from wbengine.types import failure as ft

__all__ = ["CeleryTask"]

LOG: Final = logging.getLogger(__name__)

#: Namespace for ids of resent tasks, which are derived from the first id and the resend number.
_RESEND_NAMESPACE: Final = uuid.UUID("5b1f0f0a-6a58-4b7e-9f3e-3f1c7f6a2d11")
_MAX_DELAY_SECONDS: Final = 10 * 365 * 86400.0


class CeleryTask(Task):
    """A task that a Celery worker runs, wherever the rest of the flow runs.

    ::

        flow.add(
            CeleryTask('proj.tasks.add', 'amqp://', args=('x', 'y'), provides='total'),
            CeleryTask('proj.tasks.report', app, requires='total', timeout=60),
        )

    `execute` sends a message of Celery's protocol 2, waits for the result and returns it. Waiting
    occupies no thread. (A serial engine runs one task at a time.) If the flow is reverted or
    cancelled, or the timeout expires, while the task waits, the Celery task is revoked: a worker
    that has not begun it skips it.

    The id of the Celery task is derived from the run (`Task.request`), so that a resumed flow finds
    the task that it sent before. Its `root_id` and `parent_id` are the uuid of the flow.

    A failure in the worker is a `Failure` with the name of the exception as Celery reports it
    (`'proj.errors.Broken'`), its text and the worker's traceback. A retry may use this name
    (`retry_on='proj.errors.Broken'`). Other failures are `RequestTimeout`, `Expired`, `Cancelled`
    (revoked by another client), `WorkerLost`, `NotEncodable` (its arguments) and `TransportFailure`
    (the broker refuses the connection or the message).

    :param task: the name of the Celery task, or a Celery task object, which also supplies its app.
    :param app_or_url: the URL of the broker, or a Celery app, which defines the broker, the result
        backend, their TLS, the queues and the routes. Celery itself is not needed here.
    :param name: the name of the atom; default: the name of the Celery task.
    :param args: names of arguments to send by position, in this order. Others are sent by name.
    :param queue: the name of a queue, as the app defines it, or a `kombu.Queue`; default: the app's
        routes, or `'celery'`.
    :param exchange: an exchange to publish to, with `routing_key`, instead of a queue.
    :param result_backend: `'rpc://'` (the default with a URL) or the URL of a Redis.
    :param timeout: maximum number of seconds to wait for the result.
    :param expires: seconds, or an aware datetime, after which workers do not begin the task.
    :param countdown: seconds before which workers do not begin the task.
    :param eta: an aware datetime before which workers do not begin the task.
    :param retries: how often the task is sent again after a timeout or a lost worker. In a resumed
        flow, also after a revocation, which may be that of a timeout of the earlier run.
    :param priority: the priority of the message, as the broker defines it.
    :param timelimit: `(soft, hard)` seconds, enforced by the worker.
    :param serializer: the serializer of the arguments: 'json', 'yaml', 'msgpack' or 'pickle'.
    :param result_serializer: the serializer of results; default: that of the app, or 'json'. JSON
        results are always accepted.
    :param ignore_result: do not wait. The task succeeds with the id of the Celery task when the
        broker has confirmed the message. Its revert revokes the Celery task.
    :param revoke_on_revert: if False, a revert never revokes the Celery task, and waits for its end
        if it runs.
    :param terminate: whether a revocation also ends a running task (prefork pools only), by SIGTERM
        (True) or the signal of this name.
    :param headers: additional headers of the message.
    :param shadow: the name of the task in logs and monitors.
    :param idempotent: if it is unknown whether an earlier run sent the task, a resumed flow sends
        it again (True) or fails with `WorkerLost` (False).
    :raises ValueError: if an option is invalid; the message contains the closest valid value.
    :raises TypeError: if an option has the wrong type.

    The other parameters are those of `Task`.
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
        rebind: binding.Rebind | None = None,
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
        self._args = binding.names_of(args)
        if len(set(self._args)) < len(self._args):
            raise ValueError(f"args of task {word!r} must not contain a name twice, got {args!r}")
        names = self._argument_names(requires, rebind, inject)
        mapped = None if rebind is None else binding.rebind_map(names, rebind)
        super().__init__(
            word if name is None else name, provides, names, rebind=mapped, inject=inject
        )
        self._address = _publisher.address_of(app_or_url, result_backend, result_serializer)
        if self._address.backend == _publisher.DISABLED and not ignore_result:
            raise ValueError(
                f"The result of {word!r} would be lost, because the app has no result"
                " backend: set result_backend, or ignore_result=True"
            )
        self._route = _publisher.route_of(app_or_url, word, queue, exchange, routing_key)
        conf = getattr(app_or_url, "conf", None)
        self._serializer = serializer or getattr(conf, "task_serializer", None) or "json"
        _serializers.mime_type(self._serializer)
        limit = time_limits.read(timelimit, f"the timelimit of task {word!r}")
        if not (shadow is None or isinstance(shadow, str)):
            raise TypeError(f"shadow must be a name, got {shadow!r}")
        if not isinstance(headers, Mapping | None) or any(
            type(n) is not str for n in headers or ()
        ):
            raise TypeError(f"headers must be a mapping of names, got {headers!r:.80}")
        if priority is not None and (type(priority) is not int or not 0 <= priority <= 255):
            raise ValueError(f"priority must be a number from 0 to 255, got {priority!r}")
        self._message = _protocol.TaskMessage(
            word, "", timelimit=limit, shadow=shadow, ignore_result=ignore_result,
            priority=priority, extra=dict(headers or {}),
        )  # fmt: skip
        if countdown is not None and eta is not None:
            raise ValueError(f"task {word!r} must have only one of countdown and eta")
        self._eta = _time_option("countdown", countdown, float) or _time_option(
            "eta", eta, dt.datetime
        )
        self._expires = _time_option("expires", expires, float, dt.datetime)
        self._timeout = _time_option("timeout", timeout, float)
        if self._timeout == 0:
            raise ValueError(f"timeout must be more than 0 seconds, got {timeout!r}")
        if type(retries) is not int or retries < 0:
            raise ValueError(f"retries must be a number of at least 0, got {retries!r}")
        self._retries = retries
        self.cancel_on_revert = bool(revoke_on_revert)
        self._signal = "SIGTERM" if terminate is True else terminate or None
        signals = signal.Signals.__members__
        if self._signal not in (None, *signals):
            hint = object_names.hint(str(terminate), signals)
            raise ValueError(
                f"terminate must be True or the name of a signal, got {terminate!r}{hint}"
            )
        self.idempotent = idempotent

    def _argument_names(self, requires: Any, rebind: Any, inject: Any) -> tuple[str, ...]:
        names = dict.fromkeys((*self._args, *binding.names_of(requires)))
        if isinstance(rebind, Mapping):
            names.update(dict.fromkeys(rebind))
            bound_names = set(rebind.values())
        else:
            bound_names = set(rebind or ())
        names.update((name, None) for name in inject or () if name not in bound_names)
        return tuple(names)

    async def execute(self, **kwargs: Any) -> Any:
        request = self.request
        first = str(uuid.uuid4()) if request is None else request.id
        args = [kwargs.pop(name) for name in self._args]
        lost: tuple[type[Exception], ...] = (exceptions.RequestTimeout, exceptions.WorkerLost)
        if request is not None and request.recovered:
            # An earlier run may have revoked the task before it sent the next one.
            lost += (exceptions.Cancelled,)
        value: Any = None
        for number in range(self._retries + 1):
            name = first if number == 0 else str(uuid.uuid5(_RESEND_NAMESPACE, f"{first}|{number}"))
            value = await self._send_and_wait(name, args, kwargs)
            if not (isinstance(value, ft.Failure) and value.check(*lost)):
                break
            if number < self._retries:
                LOG.warning("Celery task %s (%s) is resent: %s", name, self.name, value)
        return value

    async def revert(self, result: Any) -> None:
        """Revoke a task that was sent with `ignore_result`.

        Any other task has ended, or was revoked when its wait was cancelled.
        """
        if self._message.ignore_result and self.cancel_on_revert and isinstance(result, str):
            self._address.publisher().revoke(result, self._signal)

    def _encode_message(
        self, id: str, args: Sequence[Any], kwargs: Any, reply_to: str | None
    ) -> Any:
        now, request = dt.datetime.now(dt.UTC), self.request
        flow = None if request is None else request.flow_uuid or None
        message = dataclasses.replace(
            self._message, id=id, args=tuple(args), kwargs=dict(kwargs), reply_to=reply_to,
            eta=_time_after(now, self._eta), expires=_time_after(now, self._expires),
            root_id=flow or id, parent_id=flow, origin=_publisher.hostname(),
        )  # fmt: skip
        wire = _protocol.encode(message, 2, self._serializer)
        if running.header_hook is not None:
            running.header_hook(wire.headers)
        return wire

    async def _send_and_wait(self, id: str, args: Sequence[Any], kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        result: asyncio.Future[Any] = loop.create_future()

        def settle(value: Any) -> None:
            if not result.done():
                result.set_result(value)

        def notify(value: Any) -> None:
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(settle, value)

        waits = not self._message.ignore_result
        posts, reader = self._address.publisher(), self._address.reader()
        if not waits and isinstance(reader, _results.RpcReader):
            reader = None
        reply_to = reader.queue.name if isinstance(reader, _results.RpcReader) else None
        request = self.request
        message = _publisher.OutgoingTask(
            id, self._encode_message(id, args, kwargs, reply_to), self._route, reader,
            waits, notify, recovered=request is not None and request.recovered,
            may_resend=self.idempotent is not False,
        )  # fmt: skip
        if waits and reader is not None:
            reader.expect(id, notify)
        posts.send(message)
        try:
            value = await asyncio.wait_for(result, self._timeout)
        except TimeoutError:
            broker_state = posts.describe_state(message)
            posts.drop(message, True, self._signal)
            text = f"Celery task {id} ({self.name}) did not end within {self._timeout:g} s"
            text = f"{text}: {broker_state}" if broker_state else text
            return ft.Failure.from_exception(exceptions.RequestTimeout(text))
        except BaseException:  # The wait was cancelled or timed out.
            request = self.request
            posts.drop(message, request is None or not request.left, self._signal)
            raise
        finally:
            # The result may arrive before the confirmation. Do not send the message again.
            message.dropped.set()
            if reader is not None:
                reader.forget(id)
        return self._value(value) if isinstance(value, _protocol.Result) else value

    def _value(self, result: _protocol.Result) -> Any:
        if result.status == "SUCCESS":
            return result.result
        failure = _results.failure_of(result)
        if result.status != "REVOKED":
            return failure
        text = f"Celery task {result.task_id} ({self.name})"
        if failure.exception_str == "expired":
            error: Exception = exceptions.Expired(f"{text} expired before a worker started it")
        else:
            error = exceptions.Cancelled(f"{text} was {failure.exception_str or 'revoked'}")
        return ft.Failure.from_exception(error)


def _named(task: Any, app_or_url: Any) -> tuple[str, Any]:
    if not isinstance(task, str):
        app_or_url = getattr(task, "app", None) if app_or_url is None else app_or_url
        name = getattr(task, "name", None)
        if not isinstance(name, str):
            raise TypeError(f"task must be the name of a Celery task, got {task!r:.80}")
        task = name
    if not task:
        raise ValueError("The name of a Celery task must not be empty")
    if app_or_url is None:
        raise TypeError(f"CeleryTask {task!r} requires app_or_url: the URL of a broker, or an app")
    return task, app_or_url


def _time_option(name: str, value: Any, *kinds: type) -> Any:
    if value is None:
        return None
    if isinstance(value, dt.datetime) and dt.datetime in kinds:
        if value.tzinfo is None:
            raise ValueError(f"{name} must have a time zone, got {value!r}")
        return value
    if isinstance(value, bool) or not isinstance(value, int | float) or float not in kinds:
        descriptions = {float: "seconds", dt.datetime: "a datetime with a time zone"}
        raise TypeError(
            f"{name} must be {' or '.join(descriptions[kind] for kind in kinds)}, got {value!r}"
        )
    if not 0 <= value < _MAX_DELAY_SECONDS:
        raise ValueError(f"{name} must be 0 or more seconds, got {value!r}")
    return float(value)


def _time_after(now: dt.datetime, when: dt.datetime | float | None) -> dt.datetime | None:
    return now + dt.timedelta(seconds=when) if isinstance(when, float) else when
