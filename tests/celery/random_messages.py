"""Random parts of task messages, reproducible by their seed; Celery's process imports this, too."""

from __future__ import annotations

import random
from datetime import datetime, timedelta, timezone
from typing import Any

TEXTS = ("", "a", "add", "naïve", "日本語", "🐇 hop", "a\nb", "\x00", "x" * 300, "__type__", "None")


def value(rng: random.Random, depth: int = 0) -> Any:
    """Return a JSON value."""
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind == 0:
        return rng.choice((None, True, False))
    if kind == 1:
        return rng.choice((0, -1, 2**53, rng.randrange(-(2**80), 2**80)))
    if kind == 2:
        return rng.choice((0.0, -1.5, 1e308, rng.random()))
    if kind < 6:
        return rng.choice(TEXTS)
    if kind == 6:
        return {rng.choice(TEXTS) + str(n): value(rng, depth + 1) for n in range(rng.randrange(4))}
    return [value(rng, depth + 1) for _ in range(rng.randrange(4))]


def id_of(rng: random.Random) -> str:
    return rng.choice((f"{rng.getrandbits(128):032x}", f"id-{rng.getrandbits(20)}", "ключ-1"))


def maybe(rng: random.Random, options: Any) -> Any:
    return options if rng.random() < 0.6 else None


def time(rng: random.Random) -> datetime:
    """Return a time with a zone."""
    zone = timezone(timedelta(minutes=rng.choice((0, 0, 60, -330, 765))))
    start = datetime(1990, 1, 1, tzinfo=zone)
    return start + timedelta(
        seconds=rng.randrange(3_000_000_000), microseconds=rng.choice((0, rng.randrange(10**6)))
    )


def signature(rng: random.Random, depth: int = 0) -> dict[str, Any]:
    """Return an encoded signature."""
    kind = rng.choice((None, None, None, "chain", "group", "chord")) if depth < 2 else None
    options = {
        key: one
        for key, one in {
            "task_id": maybe(rng, id_of(rng)),
            "countdown": maybe(rng, rng.randrange(100)),
            "queue": maybe(rng, "other"),
            "link": maybe(rng, [signature(rng, depth + 2)]) if depth < 2 else None,
        }.items()
        if one is not None
    }
    several = [signature(rng, depth + 1) for _ in range(rng.randrange(1, 3))] if kind else []
    kwargs: dict[str, Any] = {"tasks": several}
    if kind is None:
        kwargs = {"k": value(rng, 2)}
    elif kind == "chord":
        kwargs = {"header": several, "body": signature(rng, depth + 1), "kwargs": {}}
    return {
        "task": f"celery.{kind}" if kind else "proj.add",
        "args": [] if kind else [value(rng, 2)],
        "kwargs": kwargs,
        "options": options,
        "subtask_type": kind,
        "immutable": rng.random() < 0.2,
    }


def timelimit(rng: random.Random) -> tuple[float | None, float | None]:
    """Return (soft, hard)."""
    soft = rng.choice((None, 1, 0.5, 60))
    return soft, rng.choice((None, 61, 3600.5))


def message(rng: random.Random, protocol: int) -> dict[str, Any]:
    """Return the fields of a message by the names of `TaskMessage`, with times as ISO text."""
    id = f"{rng.getrandbits(128):032x}"
    eta, expires = maybe(rng, time(rng)), maybe(rng, time(rng))
    fields = {
        "task": rng.choice(("proj.add", "задача.run", "x")),
        "id": id,
        "args": [value(rng) for _ in range(rng.randrange(4))],
        "kwargs": {f"k{n}": value(rng) for n in range(rng.randrange(4))},
        "group": maybe(rng, id_of(rng)),
        "group_index": maybe(rng, rng.randrange(1000)),
        "eta": eta and eta.isoformat(),
        "expires": expires and expires.isoformat(),
        "retries": rng.choice((0, 0, 1, 7)),
        "timelimit": timelimit(rng),
        "callbacks": [signature(rng) for _ in range(rng.randrange(3))],
        "errbacks": [signature(rng) for _ in range(rng.randrange(3))],
        "chord": maybe(rng, signature(rng)),
        "reply_to": maybe(rng, id_of(rng)),
    }
    if protocol == 2:
        stamps = {f"stamp{n}": value(rng, 2) for n in range(rng.randrange(3))}
        fields |= {
            "root_id": id_of(rng),
            "parent_id": maybe(rng, id_of(rng)),
            "shadow": maybe(rng, "тень"),
            "argsrepr": rng.choice(("()", "(1, '🐇')")),
            "kwargsrepr": rng.choice(("{}", "{'a': 1}")),
            "origin": "gen1@host",
            "ignore_result": rng.random() < 0.2,
            "replaced_task_nesting": rng.choice((0, 0, 2)),
            "stamps": stamps,
            "stamped_headers": list(stamps) or None,
            "chain": [signature(rng) for _ in range(rng.randrange(3))],
        }
    return fields
