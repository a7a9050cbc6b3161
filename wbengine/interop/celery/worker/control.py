"""What Celery's `inspect` and `control` commands, and Flower, may ask a worker of ours."""

from __future__ import annotations

import logging
import os
import platform
import resource
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Protocol

import kombu
from kombu import pidbox

from wbengine import __version__
from wbengine.interop.celery import clock
from wbengine.interop.celery.monitoring import publisher
from wbengine.interop.celery.protocol import wire

__all__ = ["Panel", "Worker"]

LOG = logging.getLogger("wbengine.celery")

#: The name of the exchange to which orders are sent.
NAMESPACE: Final = "celery"

#: Seconds for which an order waits in a mailbox, and for which that stays without a reader.
_ORDER_TTL: Final = 300.0
_MAILBOX_TTL: Final = 10.0

#: Names that are no tasks of anybody's own.
_BUILT_IN: Final = "celery."

Handler = Callable[..., Any]


class Worker(Protocol):
    """What a panel needs of the worker that it speaks for; its thread is the consumer's."""

    @property
    def node(self) -> str: ...
    @property
    def queues(self) -> list[str]: ...
    def revoke(self, ids: Iterable[Any], terminate: bool) -> None: ...
    def revoke_by_stamps(self, stamps: Mapping[str, Any], terminate: bool) -> None: ...
    def known(self, what: str, *args: Any) -> Any:
        """What the service says of itself: the result of its method, or its attribute."""

    def stats(self) -> dict[str, Any]: ...
    def settings(self) -> dict[str, Any]: ...
    def add_queue(self, name: str) -> None: ...
    def cancel_queue(self, name: str) -> None: ...
    def shut_down(self) -> None: ...


class Panel:
    """Obeys orders, and answers questions, that come by the exchange `celery.pidbox`.

    What Celery's own workers do and ours do not is answered with `{'error': why}`.
    """

    def __init__(
        self, worker: Worker, told: publisher.EventPublisher | None, ticks: clock.Clock
    ) -> None:
        self._worker = worker
        self._publisher = told
        self._clock = ticks
        self._began = time.monotonic()
        self._mailbox = pidbox.Mailbox(
            NAMESPACE,
            type="fanout",
            clock=ticks,
            accept=["json"],
            serializer="json",
            queue_ttl=_ORDER_TTL,
            queue_expires=_MAILBOX_TTL,
        )
        # Which is told by anybody who sends it an order under its name.
        self._mailbox.queue_exclusive = False
        self._listening: Any = None

    def listen(self, connection: kombu.Connection) -> None:
        """Take orders over a connection, in the thread that reads it."""
        channel = connection.channel()
        wire.keep_packed(channel)
        node = self._mailbox(connection).Node(
            self._worker.node, state=None, channel=channel, handlers=_Handlers(self)
        )

        def on_order(body: Any, message: Any) -> None:
            try:
                node.handle_message(body, message)
            except (*connection.connection_errors, *connection.channel_errors):
                raise
            except Exception as error:  # whatever it says
                LOG.warning("an order cannot be obeyed: %.300r: %s", body, error)

        self._listening = kombu.Consumer(
            channel,
            [self._mailbox.get_queue(self._worker.node)],
            callbacks=[on_order],
            on_decode_error=_unreadable,
            no_ack=True,
            accept=["json"],
        )
        self._listening.consume()

    def handlers(self) -> dict[str, Handler]:
        """The commands by name; each is called with the arguments of the order."""
        names = (
            "active", "active_queues", "add_consumer", "cancel_consumer", "conf",
            "disable_events", "enable_events", "heartbeat", "hello", "ping", "query_task",
            "registered", "report", "reserved", "revoke", "revoke_by_stamped_headers", "revoked",
            "scheduled", "shutdown", "stats", "terminate",
        )  # fmt: skip
        found: dict[str, Handler] = {name: getattr(self, f"_{name}") for name in names}
        found["clock"] = self._tell_clock
        for alias, name in _ALIASES.items():
            found[alias] = found[name]
        for name, why in _REFUSED.items():
            found[name] = _refusal(name, why)
        return found

    # Orders.

    def _revoke(
        self, task_id: Any = None, terminate: bool = False, signal: Any = None, **_: Any
    ) -> dict[str, Any]:
        ids = _listed(task_id)
        self._worker.revoke(ids, bool(terminate))
        if terminate:
            return _ok(f"terminate: {', '.join(map(str, ids))}")
        return _ok(f"tasks {', '.join(map(str, ids))} flagged as revoked")

    def _terminate(self, signal: Any = None, task_id: Any = None, **_: Any) -> dict[str, Any]:
        return self._revoke(task_id, terminate=True)

    def _revoke_by_stamped_headers(
        self, headers: Any = None, terminate: bool = False, **_: Any
    ) -> dict[str, Any]:
        if isinstance(headers, list):
            headers = dict(str(each).split("=", 1) for each in headers)
        self._worker.revoke_by_stamps(dict(headers or {}), bool(terminate))
        return _ok(f"headers {headers} flagged as revoked")

    def _enable_events(self, **_: Any) -> dict[str, Any]:
        if self._publisher is None:
            return _error("this worker publishes no events: start it with --events celery")
        return _ok("task events enabled" if self._publisher.enable() else _ALREADY_ENABLED)

    def _disable_events(self, **_: Any) -> dict[str, Any]:
        if self._publisher is None:
            return _error("this worker publishes no events: start it with --events celery")
        return _ok("task events disabled" if self._publisher.disable() else _ALREADY_DISABLED)

    def _heartbeat(self, **_: Any) -> None:
        if self._publisher is not None:
            self._publisher.beat()

    def _add_consumer(self, queue: Any = None, **_: Any) -> dict[str, Any]:
        if not (isinstance(queue, str) and queue):
            return _error("which queue?")
        self._worker.add_queue(queue)
        return _ok(f"add consumer {queue}")

    def _cancel_consumer(self, queue: Any = None, **_: Any) -> dict[str, Any]:
        self._worker.cancel_queue(str(queue))
        return _ok(f"no longer consuming from {queue}")

    def _shutdown(self, msg: Any = None, **_: Any) -> None:
        LOG.warning("told to end by remote control")
        self._worker.shut_down()

    # Questions.

    def _ping(self, **_: Any) -> dict[str, Any]:
        return _ok("pong")

    def _hello(self, from_node: Any = None, revoked: Any = None, **_: Any) -> dict[str, Any] | None:
        if from_node == self._worker.node:
            return None
        if isinstance(revoked, list | dict):
            self._worker.revoke(list(revoked), False)
        return {"revoked": self._revoked(), "clock": self._clock.forward()}

    def _tell_clock(self, **_: Any) -> dict[str, Any]:
        return {"clock": self._clock.value}

    def _active(self, **_: Any) -> Any:
        return self._worker.known("active")

    def _reserved(self, **_: Any) -> Any:
        return self._worker.known("reserved")

    def _scheduled(self, **_: Any) -> Any:
        return self._worker.known("scheduled")

    def _query_task(self, ids: Any = None, **_: Any) -> Any:
        return self._worker.known("query", _listed(ids))

    def _revoked(self, **_: Any) -> list[str]:
        return list(self._worker.known("revoked").ids)

    def _registered(self, taskinfoitems: Any = None, builtins: bool = False, **_: Any) -> list[str]:
        names: Iterable[str] = self._worker.known("tasks").names
        return [name for name in names if builtins or not name.startswith(_BUILT_IN)]

    def _active_queues(self, **_: Any) -> list[dict[str, Any]]:
        return [_queue(name) for name in self._worker.queues]

    def _stats(self, **_: Any) -> dict[str, Any]:
        return {
            "total": self._worker.known("totals"),
            "pid": os.getpid(),
            "clock": str(self._clock.value),
            "uptime": round(time.monotonic() - self._began),
            "rusage": _usage(),
            **self._worker.stats(),
        }

    def _conf(self, with_defaults: bool = False, **_: Any) -> dict[str, Any]:
        return self._worker.settings()

    def _report(self, **_: Any) -> dict[str, Any]:
        python = f"{platform.python_implementation()} {platform.python_version()}"
        return _ok(
            f"wbengine {__version__}, kombu {kombu.__version__}, {python} on {platform.system()}"
        )


def _unreadable(message: Any, error: BaseException) -> None:
    LOG.warning("an order cannot be read: %s", error)


class _Handlers(dict[str, Handler]):
    """As kombu calls them: with its own `state` before the arguments."""

    def __init__(self, panel: Panel) -> None:
        super().__init__(
            (name, _without_state(handler)) for name, handler in panel.handlers().items()
        )

    def __missing__(self, name: str) -> Handler:
        return _without_state(_refusal(str(name), "this worker does not know it"))


_ALREADY_ENABLED: Final = "task events already enabled"
_ALREADY_DISABLED: Final = "task events already disabled"

_ALIASES: Final = {
    "dump_active": "active",
    "dump_conf": "conf",
    "dump_reserved": "reserved",
    "dump_revoked": "revoked",
    "dump_schedule": "scheduled",
    "dump_tasks": "registered",
}

_SLOTS: Final = "the slots of this worker are fixed: it was given them when it was started"
_REFUSED: Final = {
    "autoscale": _SLOTS,
    "pool_grow": _SLOTS,
    "pool_shrink": _SLOTS,
    "pool_restart": "restart the worker",
    "rate_limit": "this worker limits no rates",
    "time_limit": "limits are those of messages and classes",
    "election": "workers of ours elect nobody",
    "memdump": "not done here",
    "memsample": "not done here",
    "objgraph": "not done here",
}


def _refusal(name: str, why: str) -> Handler:
    def refuse(**_: Any) -> dict[str, Any]:
        return _error(f"{name[:100]}: {why}")

    return refuse


def _without_state(handler: Handler) -> Handler:
    def call(state: Any, **arguments: Any) -> Any:
        return handler(**arguments)

    return call


def _ok(text: str) -> dict[str, Any]:
    return {"ok": text}


def _error(text: str) -> dict[str, Any]:
    return {"error": text}


def _listed(value: Any) -> list[Any]:
    if value is None:
        return []
    return list(value) if isinstance(value, list | tuple | set) else [value]


def _queue(name: str) -> dict[str, Any]:
    return {
        "name": name,
        "exchange": {"name": name, "type": "direct", "durable": True, "auto_delete": False},
        "routing_key": name,
        "durable": True,
        "exclusive": False,
        "auto_delete": False,
        "no_ack": False,
        "alias": None,
        "bindings": [],
        "queue_arguments": None,
        "binding_arguments": None,
        "consumer_arguments": None,
        "max_length": None,
        "message_ttl": None,
        "expires": None,
    }


def _usage() -> dict[str, Any]:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {
        "utime": used.ru_utime,
        "stime": used.ru_stime,
        "maxrss": used.ru_maxrss,
        "minflt": used.ru_minflt,
        "majflt": used.ru_majflt,
        "nvcsw": used.ru_nvcsw,
        "nivcsw": used.ru_nivcsw,
    }
