"""Client functions; only a process with Celery imports this module.

A test calls them by name through `peers.Client`; the result is pickled.
"""

from __future__ import annotations

import datetime as dt
import decimal
import json
import time
import uuid
from pathlib import Path
from typing import Any

import celery
import kombu
from celery import result as results
from kombu import pools

from tests.celery import tasks
from tests.support.waiting import until

#: Maximum seconds to wait for a result.
SOON = 60.0

NAME = tasks.__name__
ID = uuid.UUID("12345678-1234-5678-1234-567812345678")
NOON = dt.datetime(2026, 1, 2, 12, 30, tzinfo=dt.UTC)
PRICE = decimal.Decimal("1.10")

_APPS: dict[str, celery.Celery] = {}


def app_of(conf: dict[str, Any]) -> celery.Celery:
    """Return the app with this configuration and make it current for all shared tasks."""
    key = json.dumps(conf, sort_keys=True)
    if key not in _APPS:
        app = celery.Celery("tests", set_as_current=False)
        app.conf.update(conf)
        _APPS[key] = app
    _APPS[key].set_current()
    return _APPS[key]


def forget(_: celery.Celery) -> None:
    """Close all apps with their connections; later calls create new ones."""
    while _APPS:
        _APPS.popitem()[1].close()
    pools.reset()


def told(error: BaseException) -> dict[str, Any]:
    """Return an exception as a dict that needs no Celery."""
    kind = type(error)
    return {
        "type": kind.__name__,
        "module": kind.__module__,
        "bases": [base.__name__ for base in kind.__mro__],
        "text": str(error),
        "args": [
            arg if isinstance(arg, str | int | float | None) else repr(arg) for arg in error.args
        ],
    }


def ended(result: results.AsyncResult, timeout: float = SOON) -> dict[str, Any]:
    """Wait for a task; return its state with its value or exception."""
    try:
        outcome: dict[str, Any] = {"value": result.get(timeout=timeout)}
    except Exception as error:
        outcome = {"error": told(error)}
    return {"id": result.id, "state": result.state, "traceback": result.traceback, **outcome}


# Single tasks -------------------------------------------------------------------------------------


def send(app: celery.Celery, name: str, args: Any = (), options: Any = None) -> results.AsyncResult:
    """Send a task with `apply_async`, or with `send_task` if the client does not define it."""
    task = app.tasks.get(name)
    if task is None:
        return app.send_task(name, args, **(options or {}))
    return task.apply_async(args, **(options or {}))


def run(app: celery.Celery, name: str, args: Any, options: dict[str, Any]) -> dict[str, Any]:
    """Send a task and wait for it."""
    return ended(send(app, name, args, options))


def extended(app: celery.Celery, name: str, args: Any, kwargs: Any) -> dict[str, Any]:
    """Return the attributes of a result that describe its task."""
    result = app.send_task(name, args, kwargs)
    result.get(timeout=SOON, propagate=False)
    names = ("name", "args", "kwargs", "worker", "retries", "queue")
    return {name: getattr(result, name) for name in names}


def start(app: celery.Celery, name: str, args: Any = (), **options: Any) -> str:
    """Send a task and return its id."""
    return str(send(app, name, args, options).id)


def wait(app: celery.Celery, *ids: str, timeout: float = SOON) -> list[dict[str, Any]]:
    """Wait for tasks that were sent before."""
    return [ended(app.AsyncResult(each), timeout) for each in ids]


def state(app: celery.Celery, task_id: str) -> str:
    return str(app.AsyncResult(task_id).state)


def delays(app: celery.Celery) -> list[Any]:
    """Call tasks with `delay` and `apply_async`."""
    sent = [
        tasks.add.delay(2, 3),
        tasks.add.delay(x="a", y="b"),
        tasks.swap.delay(1, [2, {"three": None}], four=4.5, five=True),
        tasks.same.delay("é\u2028\U0001f600 zażółć"),
        tasks.size.delay("x" * 1_000_000),
        tasks.same.apply_async(({"when": NOON, "id": ID, "price": PRICE},)),
        tasks.add.apply_async((1,), {"y": 2}, shadow="other", argsrepr="(?)"),
    ]
    return [each.get(timeout=SOON) for each in sent]


def timed(app: celery.Celery) -> dict[str, Any]:
    """Send delayed and expired tasks; return their results and times."""
    inspect(app, "ping")  # RabbitMQ drops expired messages that no consumer receives at once
    now = dt.datetime.now(dt.UTC)
    here = dt.datetime.now().astimezone()
    sent = {
        "over": tasks.moment.apply_async(expires=now - dt.timedelta(seconds=5)),
        "late": tasks.moment.apply_async(countdown=0.5, expires=0.1),
        "countdown": tasks.moment.apply_async(countdown=0.5),
        "eta": tasks.moment.apply_async(eta=now + dt.timedelta(seconds=0.6)),
        "eta there": tasks.moment.apply_async(
            eta=here.astimezone(dt.timezone(dt.timedelta(hours=-7))) + dt.timedelta(seconds=0.4)
        ),
        "eta over": tasks.moment.apply_async(eta=now - dt.timedelta(hours=1)),
        "expires": tasks.moment.apply_async(expires=60),
    }
    outcomes = {name: ended(each) for name, each in sent.items()}
    for each in outcomes.values():
        if "value" in each:
            each["value"] -= now.timestamp()
    return outcomes


def failures(app: celery.Celery) -> dict[str, Any]:
    """Return the exceptions that `get` raises."""
    sent = {
        "builtin": tasks.fail.delay(),
        "odd": tasks.fail_oddly.delay(),
        "hidden": tasks.fail_hidden.delay(),
        "arguments": app.send_task(f"{NAME}.add", (1, 2, 3)),
        "kwargs": app.send_task(f"{NAME}.add", (1,), {"z": 3}),
        "unknown": app.send_task(f"{NAME}.ad", (1, 2)),
    }
    return {name: ended(each) for name, each in sent.items()}


def links(app: celery.Celery, folder: str) -> dict[str, Any]:
    """Run tasks with callbacks and errbacks."""
    good, bad = f"{folder}/good", f"{folder}/bad"
    first = tasks.add.apply_async(
        (1, 2),
        link=[
            tasks.note_value.s(path=good),
            tasks.mul.s(5) | tasks.note_value.s(path=good),
            tasks.note.si(good, "immutable"),
        ],
        link_error=tasks.note_error.s(path=bad),
    )
    second = tasks.fail.apply_async(
        link=tasks.note_value.s(path=good),
        link_error=[tasks.note_error.s(path=bad), tasks.note.si(bad, "immutable")],
    )
    value = first.get(timeout=SOON)
    error = ended(second)
    return {
        "value": value,
        "error": error,
        "ids": [first.id, second.id],
        "children": len(first.children or ()),
    }


def ignored(app: celery.Celery, path: str, is_stored: bool) -> dict[str, Any]:
    """Return the states of tasks that ignore their results; wait for results if they are stored."""
    quiet = tasks.note.apply_async((path, "quiet"), ignore_result=True)
    failed = tasks.fail.apply_async(ignore_result=True)
    tasks.note.apply_async((path, "loud")).get(timeout=SOON)
    until(lambda: _lines(path) == ["loud", "quiet"])
    until(lambda: not _under_way(app))
    sent = [app.AsyncResult(each.id) for each in (quiet, failed)]
    for each in sent if is_stored else ():
        each.get(timeout=SOON, propagate=False)
    return {"states": [each.state for each in sent]}


def _under_way(app: celery.Celery) -> list[Any]:
    """Return the active and reserved tasks of a worker."""
    replies = [inspect(app, what) for what in ("active", "reserved")]
    return [each for reply in replies for tasks_of_one in reply.values() for each in tasks_of_one]


def _lines(path: str) -> list[str]:
    file = Path(path)
    return sorted(file.read_text(encoding="utf-8").splitlines()) if file.exists() else []


def facts(app: celery.Celery) -> dict[str, Any]:
    """Return what tasks read from their requests."""
    plain = tasks.about.delay()
    headers = tasks.about.apply_async(headers={"color": "red"})
    stamped = tasks.about.s()
    stamped.stamp(batch="seven", color="blue")
    stamped = stamped.apply_async()
    chained = (tasks.about.si() | tasks.about.si() | tasks.about.si()).apply_async()
    grouped = celery.group(tasks.about.si() for _ in range(3)).apply_async()
    told = {
        "plain": [plain.id, plain.get(timeout=SOON)],
        "headers": [headers.id, headers.get(timeout=SOON)],
        "stamped": [stamped.id, stamped.get(timeout=SOON)],
        "group": [grouped.id, [each.id for each in grouped], grouped.get(timeout=SOON)],
    }
    chain = []
    while chained is not None:
        chain.insert(0, [chained.id, chained.get(timeout=SOON)])
        chained = chained.parent
    return {**told, "chain": chain}


# Canvas -------------------------------------------------------------------------------------------


def chain(app: celery.Celery, length: int) -> list[Any]:
    """Run a chain of additions; return the last value and the number of its parents."""
    last = celery.chain(tasks.add.s(0, 1), *(tasks.add.s(1) for _ in range(length - 1)))()
    value = last.get(timeout=SOON)
    before = 0
    while last.parent is not None:
        last, before = last.parent, before + 1
    return [value, before]


def broken_chain(app: celery.Celery, folder: str) -> dict[str, Any]:
    """Run a chain whose second task fails; return the results of its parts."""
    good, bad = f"{folder}/good", f"{folder}/bad"
    made = tasks.add.s(1, 1) | tasks.fail.si("broken") | tasks.note_value.s(path=good)
    made |= tasks.note_value.s(path=good)
    made.on_error(tasks.note_error.s(path=bad))
    last = made.apply_async()
    failed = last.parent.parent
    outcomes = {"failed": ended(failed), "first": failed.parent.get(timeout=SOON)}
    if app.conf.result_backend != "rpc://":
        outcomes["last"] = [type(last.get(timeout=SOON, propagate=False)).__name__, last.state]
    return outcomes


def flows(app: celery.Celery) -> dict[str, Any]:
    """Run canvases without chords."""
    add, mul, same = tasks.add, tasks.mul, tasks.same
    sent = {
        "immutable": (add.s(1, 1) | add.si(5, 6) | mul.s(2)).apply_async(),
        "group": celery.group(add.s(n, n) for n in range(20)).apply_async(),
        "groups in groups": celery.group(
            add.s(1, 1), celery.group(add.s(2, 2), celery.group(add.s(3, 3)))
        ).apply_async(),
        "chains in a group": celery.group(
            add.s(1, 1) | mul.s(10), add.s(2, 2) | mul.s(10) | mul.s(10)
        ).apply_async(),
        "a group behind": (add.s(1, 1) | celery.group(add.s(10), mul.s(10))).apply_async(),
        "map": same.map([1, "b", [3]]).apply_async(),
        "starmap": add.starmap([(1, 2), (3, 4)]).apply_async(),
        "chunks": add.chunks([(n, n) for n in range(10)], 4).apply_async(),
        "partial": add.s(1).apply_async((2,)),
        "kwargs": add.s(y="b").clone(kwargs={"x": "a"}).apply_async(),
        "options": add.s(1, 2).set(countdown=0.05, expires=30).apply_async(),
    }
    return {name: result.get(timeout=SOON) for name, result in sent.items()}


def chords(app: celery.Celery) -> dict[str, Any]:
    """Run chords, which require a result store that counts parts."""
    add, mul, same, total = tasks.add, tasks.mul, tasks.same, tasks.total
    group, chain, chord = celery.group, celery.chain, celery.chord
    sent = {
        "chord": chord([add.s(n, n) for n in range(30)], total.s()).apply_async(),
        "in order": chord([same.s(n) for n in "abcdefghijklmno"], same.s()).apply_async(),
        "of one": chord([add.s(1, 1)], total.s()).apply_async(),
        "immutable": chord([same.s(1), same.s(2)], same.si("body")).apply_async(),
        "upgraded": chain(group(add.s(1, 1), add.s(2, 2)), total.s(), add.s(100)).apply_async(),
        "in the midst": chain(
            add.s(1, 1), group(add.s(10), mul.s(10)), total.s(), same.s()
        ).apply_async(),
        "two": chain(
            group(same.s(1), same.s(2)), group(total.s(), total.s()), total.s()
        ).apply_async(),
        "chains as parts": chord(
            [add.s(1, 1) | mul.s(10), add.s(2, 2), add.s(1, 0) | mul.s(3) | mul.s(3)], same.s()
        ).apply_async(),
        "groups as parts": chord(
            group(same.s(1), group(same.s(2), same.s(3))), same.s()
        ).apply_async(),
        "chords as parts": chord(
            [chord([add.s(1, 1), add.s(2, 2)], total.s()), same.s(1)], same.s()
        ).apply_async(),
        "a chain as body": chord([same.s(1), same.s(2)], total.s() | mul.s(7)).apply_async(),
        "a group as body": chord([same.s(1), same.s(2)], group(total.s(), same.s())).apply_async(),
    }
    return {name: result.get(timeout=SOON) for name, result in sent.items()}


def failing_chord(app: celery.Celery, folder: str, chained: bool) -> dict[str, Any]:
    """Run a chord with a failing part, or a failing chain as a part; return the results."""
    bad, good = f"{folder}/bad", f"{folder}/good"
    body = tasks.note_value.s(path=good).on_error(tasks.note_error.s(path=bad))
    second = tasks.fail.si("one part")
    if chained:
        second = tasks.same.s(2) | second | tasks.note_value.s(path=good)
    result = celery.chord([tasks.same.s(1), second, tasks.same.s(3)], body).apply_async()
    error = result.get(timeout=SOON, propagate=False)
    states = [ended(part)["state"] for part in result.parent]
    return {"id": result.id, "body": told(error), "state": result.state, "parts": states}


def spread(app: celery.Celery, parts: int, folder: str) -> list[Any]:
    """Run a chord whose parts wait for both kinds of workers; return the result of its body."""
    header = [tasks.meet.s(folder) for _ in range(parts)]
    found: list[Any] = celery.chord(header, tasks.joined.s())().get(timeout=SOON)
    return found


# Limits and revocation ----------------------------------------------------------------------------


def limited(app: celery.Celery, folder: str) -> dict[str, Any]:
    """Run tasks that exceed their soft limits, and one that does not."""
    sent = {
        "soft": tasks.rest.apply_async((90,), soft_time_limit=1, time_limit=60),
        "gentle": tasks.gentle.apply_async((90,), soft_time_limit=1),
        "in time": tasks.rest.apply_async((0.1,), soft_time_limit=40, time_limit=60),
    }
    return {name: ended(each) for name, each in sent.items()}


def stubborn(app: celery.Celery, path: str) -> dict[str, Any]:
    """Run a task that ignores its soft limit, and one that only has a hard limit."""
    first = tasks.stubborn.apply_async((90, path), soft_time_limit=1, time_limit=4)
    second = tasks.rest.apply_async((90,), time_limit=1)
    return {"both": ended(first), "hard": ended(second)}


def revoked(app: celery.Celery, path: str) -> dict[str, Any]:
    """Revoke a delayed task that a worker holds, and a task that is sent after its revocation."""
    inspect(app, "ping")
    for wait in (1, 4, 16):  # increase the delay until the revocation arrives in time
        due = dt.datetime.now(dt.UTC) + dt.timedelta(seconds=wait)
        runs = tasks.note.apply_async((path, "runs"), eta=due)
        waits = tasks.note.apply_async((path, "waits"), eta=due)
        later = str(uuid.uuid4())
        while waits.id not in str(inspect(app, "scheduled")) and _is_before(due):
            pass
        _revoke(app, waits.id, later)
        if _is_before(due):
            break
        ended(waits)
        Path(path).unlink()
    sent = tasks.note.apply_async((path, "later"), task_id=later)
    return {name: ended(each) for name, each in (("waits", waits), ("later", sent), ("runs", runs))}


def _is_before(moment: dt.datetime) -> bool:
    return dt.datetime.now(dt.UTC) < moment


def terminated(app: celery.Celery, path: str, **options: Any) -> dict[str, Any]:
    """Revoke a task while it runs."""
    runs = tasks.rest.delay(90, path)
    until(lambda: _lines(path))
    if options:
        runs.revoke(**options)
        return ended(runs)
    _revoke(app, runs.id)
    time.sleep(0.3)
    outcome = {"state": runs.state, "active": str(inspect(app, "active")).count(runs.id)}
    runs.revoke(terminate=True)
    return {"before": outcome, **ended(runs)}


# Control ------------------------------------------------------------------------------------------


def revoke(app: celery.Celery, *ids: str, **options: Any) -> None:
    app.control.revoke(list(ids), **options)


def inspect(
    app: celery.Celery, what: str, *args: Any, limit: int = 1, at: str | None = None
) -> Any:
    """Return the answers of `limit` workers or of the named one; repeat the query until they
    answer.
    """
    replies: dict[str, Any] = {}
    asked = app.control.inspect(timeout=1.5, limit=limit, destination=at and [at])

    def answered() -> bool:
        replies.update(getattr(asked, what)(*args) or {})
        return len(replies) >= limit

    until(answered)
    return replies


def _revoke(app: celery.Celery, *ids: str) -> None:
    """Revoke tasks and wait until a worker confirms it."""
    until(lambda: app.control.revoke(list(ids), reply=True, timeout=1.5, limit=1))


def control(app: celery.Celery, what: str, **kwargs: Any) -> Any:
    return app.control.broadcast(what, kwargs, reply=True, timeout=1.5, limit=1)


def answers(app: celery.Celery, path: str) -> dict[str, Any]:
    """Return the answers of a busy worker to all inspect commands."""
    inspect(app, "ping")
    gone, gate = str(uuid.uuid4()), f"{path}.gate"
    _revoke(app, gone)
    later = tasks.add.apply_async((1, 2), countdown=3600)
    runs = [tasks.hold.apply_async((path, gate)) for _ in range(3)]  # the worker has two slots
    until(lambda: len(_lines(path)) == 2 and later.id in str(inspect(app, "scheduled")))
    names = ("ping", "active", "reserved", "scheduled", "revoked", "registered", "stats")
    replies = {name: inspect(app, name) for name in (*names, "active_queues", "conf", "report")}
    replies["query"] = inspect(app, "query_task", later.id)
    replies["ids"] = {"gone": gone, "later": later.id, "runs": [each.id for each in runs]}
    app.control.revoke(later.id)
    Path(gate).touch()
    wait(app, *replies["ids"]["runs"])
    return replies


# Messages -----------------------------------------------------------------------------------------


def depth(app: celery.Celery, queue: str) -> int:
    """Return the number of messages in a queue, including unacknowledged ones of Redis.

    RabbitMQ requeues unacknowledged messages when a worker disconnects.
    """
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        if connection.transport.driver_type == "redis":
            return int(channel._size(queue) + channel.client.hlen(channel.unacked_key))
        return int(channel.queue_declare(queue, passive=True).message_count)


def unacknowledged(app: celery.Celery) -> int:
    """Return the number of unacknowledged messages of a Redis."""
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        return int(channel.client.hlen(channel.unacked_key))


def take(app: celery.Celery, queue: str) -> list[Any]:
    """Remove and return headers, correlation id and body of each message in a queue."""
    bodies = []
    with app.connection_for_read() as connection:
        channel = connection.default_channel
        bound = kombu.Queue(queue, kombu.Exchange(queue), queue).bind(channel)
        bound.declare()
        while (message := bound.get(no_ack=True)) is not None:
            correlation_id = message.properties.get("correlation_id")
            bodies.append([message.headers, correlation_id, message.body])
    return bodies


def errback(app: celery.Celery, path: str) -> dict[str, Any]:
    """Run a failing task with an errback that has three arguments."""
    return ended(tasks.fail.apply_async(link_error=tasks.note_failure.s(path=path)))
