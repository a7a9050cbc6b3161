"""Celery's sender and receiver in a separate process: one answer for each input line."""

from __future__ import annotations

import base64
import json
import logging
import random
import sys
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

import celery
import random_messages
from celery import events
from celery.app.task import Context
from celery.worker import request, strategy
from kombu import message as kombu_message
from kombu import serialization

app = celery.Celery("peer", broker="memory://", backend="cache+memory://", set_as_current=True)


def made(seed: int, protocol: int) -> dict[str, Any]:
    """Return a message of Celery's sender, and its fields."""
    fields = random_messages.message(random.Random(seed), protocol)
    soft, hard = fields["timelimit"]
    stamps = fields.get("stamps") or {}
    more = {
        key: fields[key]
        for key in (
            "root_id", "parent_id", "shadow", "argsrepr", "kwargsrepr", "origin", "ignore_result",
            "replaced_task_nesting", "stamped_headers", "chain",
        )
        if key in fields
    }  # fmt: skip
    write = app.amqp.as_task_v2 if protocol == 2 else app.amqp.as_task_v1
    headers, properties, body, _ = write(
        fields["id"],
        fields["task"],
        fields["args"],
        fields["kwargs"],
        eta=fields["eta"] and datetime.fromisoformat(fields["eta"]),
        expires=fields["expires"] and datetime.fromisoformat(fields["expires"]),
        group_id=fields["group"],
        group_index=fields["group_index"],
        retries=fields["retries"],
        chord=fields["chord"],
        callbacks=fields["callbacks"] or None,
        errbacks=fields["errbacks"] or None,
        reply_to=fields["reply_to"],
        time_limit=hard,
        soft_time_limit=soft,
        **more | {"chain": fields.get("chain") or None},
        **stamps,
    )
    kind, encoding, data = serialization.dumps(body, "json")
    return {
        "fields": fields,
        "headers": headers,
        "properties": properties,
        "content_type": kind,
        "content_encoding": encoding,
        "body": data,
    }


def nothing(*args: Any, **kwargs: Any) -> None:
    """Do nothing, as the body of all tasks."""


def read(row: dict[str, Any]) -> dict[str, Any]:
    """Return the fields that Celery's worker reads from a message."""
    message = kombu_message.Message(
        body=base64.b64decode(row["body"]),
        content_type=row["content_type"],
        content_encoding=row["content_encoding"],
        headers=row["headers"],
        properties=row["properties"],
        accept={row["content_type"]},
    )
    if "task" in message.headers:
        body, headers, decoded, utc = message.body, message.headers, False, True
    else:
        body, headers, decoded, utc = strategy.proto1_to_proto2(message, message.decode())
    if headers["task"] not in app.tasks:
        app.task(name=headers["task"], typing=False)(nothing)
        app.finalize()
    received = request.Request(
        message, app=app, body=body, headers=headers, decoded=decoded, utc=utc,
        task=app.tasks[headers["task"]],
    )  # fmt: skip
    context = received._context
    names = (
        "id", "group", "group_index", "retries", "reply_to", "correlation_id", "root_id",
        "parent_id", "shadow", "argsrepr", "kwargsrepr", "origin", "ignore_result",
        "replaced_task_nesting", "stamped_headers", "stamps", "callbacks", "errbacks", "chain",
        "chord", "time_limit", "soft_time_limit",
    )  # fmt: skip
    return {name: getattr(context, name) for name in names} | {
        "task": context.task,
        "args": received.args,
        "kwargs": received.kwargs,
        "eta": received.eta and received.eta.isoformat(),
        "expires": received.expires and received.expires.isoformat(),
    }


def stored(id: str, status: str, value: Any, group: str | None, **conf: Any) -> str:
    """Return a result as stored by Celery's worker, in base 64."""
    backend = app_with(**conf).backend
    context = Context({"id": id, "group": group, "parent_id": "p", **EXTENDED})
    if status == "FAILURE":
        value = KeyError(*value)
    backend.store_result(
        id,
        value,
        status,
        traceback="its traceback" if status == "FAILURE" else None,
        request=context,
    )
    data = backend.get(backend.get_key_for_task(id))
    return base64.b64encode(data if isinstance(data, bytes) else data.encode()).decode()


def app_with(**conf: Any) -> celery.Celery:
    client = celery.Celery("client", broker="memory://", backend="cache+memory://")
    client.conf.update(conf, accept_content=["json", "msgpack", "yaml"])
    return client


EXTENDED = {
    "task": "proj.add", "args": [1], "kwargs": {"k": 2}, "hostname": "w@h", "retries": 3,
    "delivery_info": {"routing_key": "q"},
}  # fmt: skip


def result(id: str, body: str, **conf: Any) -> dict[str, Any]:
    """Return the fields that Celery's client reads from a stored result."""
    made = app_with(**conf)
    made.backend.set(made.backend.get_key_for_task(id), base64.b64decode(body))
    stored = made.AsyncResult(id)
    try:
        value: Any = stored.get(timeout=1, disable_sync_subtasks=False)
    except Exception as error:
        value = [type(error).__name__, list(error.args)]
    return {
        "status": stored.status, "value": value, "traceback": stored.traceback,
        "children": [str(one) for one in stored.children or ()],
        "done": stored.date_done, "name": stored.name, "args": stored.args, "kwargs": stored.kwargs,
        "worker": stored.worker, "retries": stored.retries, "queue": stored.queue,
    }  # fmt: skip


def told(kind: str, fields: dict[str, Any]) -> dict[str, Any]:
    """Return an event as published by Celery's dispatcher."""
    published: list[Any] = []

    class Producer:
        def publish(self, event: Any, **options: Any) -> None:
            published.append((event, options))

    connection = app.connection_for_write()
    dispatcher = events.EventDispatcher(connection, hostname="w@h", enabled=False, app=app)
    dispatcher.publish(kind, fields, Producer())
    [(event, options)] = published
    mime, encoding, body = serialization.dumps(event, options["serializer"])
    return {
        "body": body, "content_type": mime, "content_encoding": encoding,
        "headers": options["headers"], "routing_key": options["routing_key"],
        "exchange": getattr(options["exchange"], "name", options["exchange"]),
        "delivery_mode": options["delivery_mode"],
    }  # fmt: skip


def heard(body: str) -> list[Any]:
    """Return the events that Celery's receiver reads from a message, and the resulting state."""
    state = app.events.State()
    receiver = app.events.Receiver(app.connection_for_read(), handlers={}, app=app)
    data = json.loads(body)
    seen = []
    for one in data if isinstance(data, list) else [data]:
        _, event = receiver.event_from_message(one)
        state.event(event)
        seen.append(event)
    tasks = [
        [task.uuid, task.state, task.name, task.root_id, task.parent_id]
        for task in state.tasks.values()
    ]
    return [seen, tasks, sorted(state.workers)]


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    calls: dict[str, Callable[..., Any]] = {
        "made": made, "read": read, "stored": stored, "result": result, "told": told,
        "heard": heard,
    }  # fmt: skip
    for line in sys.stdin:
        name, *args = json.loads(line)
        options = args.pop() if args and name in ("stored", "result") else {}
        print(json.dumps(calls[name](*args, **options), default=str))


if __name__ == "__main__":
    main()
