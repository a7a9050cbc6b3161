"""Celery's own sender and reader, run in a process of their own: one answer for each line."""

from __future__ import annotations

import base64
import json
import logging
import math
import random
import sys
import warnings
from collections.abc import Callable
from datetime import datetime
from typing import Any

import celery
import making
from celery import exceptions, result
from celery.app import trace
from celery.backends import base
from celery.worker import request, strategy
from kombu import message as kombu_message
from kombu import serialization


class Stored(base.BaseBackend):
    """A result backend in memory, which counts the parts of chords as the one in Redis does."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.results: dict[str, tuple[str, Any]] = {}
        self.sizes: dict[str, int] = {}
        self.saved: dict[str, Any] = {}
        self.parts: dict[str, dict[str, Any]] = {}

    def store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, **others: Any
    ) -> None:
        failed = isinstance(result, BaseException)
        self.results[task_id] = state, type(result).__name__ if failed else result

    def get_state(self, task_id: str) -> str:
        return self.results.get(task_id, ("PENDING", None))[0]

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        self.sizes[group_id] = chord_size

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        header = self.app.GroupResult(*header_result_args)
        if any(isinstance(one, result.GroupResult) for one in header.results):
            self.saved[header.id] = header.as_tuple()

    def on_chord_part_return(self, request: Any, state: str, value: Any, **others: Any) -> None:
        group = request.group
        if not group or not request.id:
            return
        parts = self.parts.setdefault(group, {})
        index = request.group_index
        known = request.id in parts
        parts.setdefault(request.id, (math.inf if index is None else index, state, value))
        if known or len(parts) != self.sizes.get(group):
            return
        body = celery.signature(request.chord, app=self.app)
        if any(state != "SUCCESS" for _, state, _ in parts.values()):
            try:
                raise exceptions.ChordError("a part failed")
            except exceptions.ChordError as error:
                self.chord_error_from_stack(body, error)
        elif group in self.saved:
            body.delay([value_of(self.results, one) for one in self.saved[group][1]])
        else:
            body.delay([value for *_, value in sorted(parts.values(), key=lambda part: part[0])])


class App(celery.Celery):
    def _get_backend(self) -> Stored:
        return Stored(self)


app = App("peer", broker="memory://", set_as_current=True)


def made(seed: int, protocol: int) -> dict[str, Any]:
    """A message as Celery's sender makes it, and the fields that it was made of."""
    found = making.message(random.Random(seed), protocol)
    soft, hard = found["timelimit"]
    stamps = found.get("stamps") or {}
    more = {
        key: found[key]
        for key in (
            "root_id", "parent_id", "shadow", "argsrepr", "kwargsrepr", "origin", "ignore_result",
            "replaced_task_nesting", "stamped_headers", "chain",
        )
        if key in found
    }  # fmt: skip
    write = app.amqp.as_task_v2 if protocol == 2 else app.amqp.as_task_v1
    headers, properties, body, _ = write(
        found["id"],
        found["task"],
        found["args"],
        found["kwargs"],
        eta=found["eta"] and datetime.fromisoformat(found["eta"]),
        expires=found["expires"] and datetime.fromisoformat(found["expires"]),
        group_id=found["group"],
        group_index=found["group_index"],
        retries=found["retries"],
        chord=found["chord"],
        callbacks=found["callbacks"] or None,
        errbacks=found["errbacks"] or None,
        reply_to=found["reply_to"],
        time_limit=hard,
        soft_time_limit=soft,
        **more | {"chain": found.get("chain") or None},
        **stamps,
    )
    kind, encoding, data = serialization.dumps(body, "json")
    return {
        "fields": found,
        "headers": headers,
        "properties": properties,
        "content_type": kind,
        "content_encoding": encoding,
        "body": data,
    }


def nothing(*args: Any, **kwargs: Any) -> None:
    """What every task does."""


def read(row: dict[str, Any]) -> dict[str, Any]:
    """What Celery's worker reads in a message."""
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
    found = request.Request(
        message, app=app, body=body, headers=headers, decoded=decoded, utc=utc,
        task=app.tasks[headers["task"]],
    )  # fmt: skip
    context = found._context
    names = (
        "id", "group", "group_index", "retries", "reply_to", "correlation_id", "root_id",
        "parent_id", "shadow", "argsrepr", "kwargsrepr", "origin", "ignore_result",
        "replaced_task_nesting", "stamped_headers", "stamps", "callbacks", "errbacks", "chain",
        "chord", "time_limit", "soft_time_limit",
    )  # fmt: skip
    return {name: getattr(context, name) for name in names} | {
        "task": context.task,
        "args": found.args,
        "kwargs": found.kwargs,
        "eta": found.eta and found.eta.isoformat(),
        "expires": found.expires and found.expires.isoformat(),
    }


def value_of(results: dict[str, Any], told: Any) -> Any:
    """The value of what `as_tuple` told."""
    (id, _), children = told
    if children is None:
        return results[id][1]
    return [value_of(results, one) for one in children]


def built(spec: Any) -> Any:
    kind, parts, options = spec
    if kind == "task":
        name, args, immutable = parts
        return celery.signature(name, args, immutable=immutable, app=app, **options)
    several = [built(one) for one in parts]
    if kind == "chord":
        found = celery.chord(several[:-1], several[-1], app=app)
    else:
        found = (celery.chain if kind == "chain" else celery.group)(several, app=app)
    for name, more in options.items():
        (found.link if name == "link" else found.link_error)(built(more))
    return found


def canvas(spec: Any, protocol: int) -> dict[str, Any]:
    """What Celery's client sends for a canvas, and what comes of it on Celery's workers."""
    backend = app.backend
    for found in (backend.results, backend.sizes, backend.saved, backend.parts):
        found.clear()
    sent: list[Any] = []

    def send(producer: Any, name: str, message: Any, **options: Any) -> None:
        headers, properties, body, _ = message
        kind, encoding, data = serialization.dumps(body, "json")
        sent.append(
            {
                "headers": json.loads(json.dumps(headers)),
                "properties": properties,
                "content_type": kind,
                "content_encoding": encoding,
                "body": data,
            }
        )

    app.amqp.send_task_message = send
    app.conf.task_protocol = protocol
    app.amqp.create_task_message = app.amqp.task_protocols[protocol]
    told = json.loads(json.dumps(built(spec).apply_async().as_tuple()))
    first = list(sent)
    sizes, saved = dict(backend.sizes), dict(backend.saved)
    calls = []
    while sent:
        row = sent.pop(0)
        message = kombu_message.Message(headers=row["headers"])
        headers, body = row["headers"], json.loads(row["body"])
        if not headers:
            body, headers, *_ = strategy.proto1_to_proto2(message, body)
        args, kwargs, embed = body
        calls.append([headers["task"], making.plain(args)])
        tracer = trace.build_tracer(headers["task"], app.tasks[headers["task"]], app=app)
        tracer(headers["id"], args, kwargs, {**headers, **embed, "delivery_info": {}})
    return {
        "messages": first, "told": told, "sizes": sizes, "saved": saved, "calls": calls,
        "results": backend.results,
    }  # fmt: skip


@app.task(name="sim.say", typing=False)
def say(*args: Any) -> Any:
    return making.said(*args)


@app.task(name="sim.fail", typing=False)
def fail(*args: Any) -> Any:
    raise ValueError("as it should")


@app.task(name="sim.note", typing=False)
def note(*args: Any) -> Any:
    return making.said(*args)


@app.task(name="sim.err")
def err(id: str) -> Any:
    return making.said("an error")


def main() -> None:
    logging.disable()
    warnings.simplefilter("ignore")
    calls: dict[str, Callable[..., Any]] = {"made": made, "read": read, "canvas": canvas}
    for line in sys.stdin:
        name, *args = json.loads(line)
        print(json.dumps(calls[name](*args)))


if __name__ == "__main__":
    main()
