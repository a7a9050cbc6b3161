"""What the options of the worker's command say about Celery."""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Iterable
from typing import Any, Final

from wbengine.interop.celery import brokers, clock
from wbengine.interop.celery.monitoring import publisher, watching
from wbengine.interop.celery.protocol import serializers
from wbengine.interop.celery.worker import backends, guest, mapping
from wbengine.transports import target as transports

__all__ = ["node_name", "visit"]

#: Name the broker and the result backend of workers that are told none.
BROKER_VARIABLE: Final = "WBENGINE_CELERY_BROKER"
BACKEND_VARIABLE: Final = "WBENGINE_CELERY_RESULT_BACKEND"

#: Transports that only ours know how to share with engines: Celery's clients are not there.
_OURS: Final = ("", "filesystem", "memory")


def visit(options: argparse.Namespace) -> tuple[list[guest.Guest], watching.Watch | None]:
    """The guest, and the observer of requests, that were asked for.

    :raises ValueError: an option makes no sense; it says which, and what would.
    :raises ImportError: a task cannot be imported.
    """
    if not all((*options.celery_queue, options.celery_default_queue)):
        raise ValueError("the name of a Celery queue must not be empty")
    broker = brokers.Broker(_url(options), dict(options.celery_broker_option))
    node, ticks = node_name(options.celery_name), clock.Clock()
    names = options.celery_accept.replace(",", " ").split()
    if not names:
        raise ValueError("--celery-accept names nothing: use json, yaml, msgpack or pickle")
    accepted = serializers.Accepted(names)
    told = watch = None
    if options.events:
        plain = {} if broker.is_amqp else broker.options
        told = publisher.EventPublisher(broker.url, node, ticks, transport_options=plain)
        watch = watching.Watch(told.tell)
    made = guest.Guest(
        broker,
        options.celery_queue,
        mapping.Tasks(options.tasks, options.celery_task),
        node=node,
        backend=backends.backend_for(
            options.celery_result_backend or os.environ.get(BACKEND_VARIABLE) or backends.RPC,
            _seconds(options.celery_result_ttl),
            accepted.names[0],
        ),
        accepted=accepted,
        langs=_langs(options.celery_lang, options.celery_queue),
        told=told,
        ticks=ticks,
        default_queue=options.celery_default_queue,
        extended=options.celery_result_extended,
    )
    if told is not None and watch is not None:
        seen = watch
        told.facts = lambda: {
            "active": made.running + seen.active,
            "processed": made.began + seen.processed,
        }
    return [made], watch


def node_name(name: str | None = None) -> str:
    """The name of a worker for monitors: `name@host`.

    :raises ValueError: it cannot be one.
    """
    name = name or f"wbengine-{os.getpid()}"
    if not name.isprintable() or " " in name or name.count("@") > 1:
        raise ValueError(f"--celery-name {name!r} is no name of a node: it is like name@host")
    return name if "@" in name else f"{name}@{socket.gethostname()}"


def _url(options: argparse.Namespace) -> str:
    named = options.celery_broker or os.environ.get(BROKER_VARIABLE)
    url: str | None = named or options.url or os.environ.get(transports.URL_VARIABLE)
    if not named and (url or "").partition("://")[0] in _OURS:
        raise ValueError(
            "where is the broker of Celery? name it: --celery-broker redis://… or amqp://…"
        )
    return str(url)


def _seconds(value: float | None) -> int:
    return 0 if value is None else max(1, round(value))


def _langs(items: Iterable[str], queues: Iterable[str]) -> dict[str, str]:
    found: dict[str, Any] = {}
    for text in items:
        lang, equals, queue = text.partition("=")
        if lang == "py":
            raise ValueError(f"--celery-lang {text!r}: tasks in Python run here")
        if not (lang and equals and queue):
            raise ValueError(f"--celery-lang {text!r} is not of the form LANG=QUEUE")
        if queue in queues:
            raise ValueError(f"--celery-lang {text!r}: this worker takes from that queue itself")
        found[lang] = queue
    return found
