"""Hostile messages: valid messages with one or more changes, and random bytes."""

from __future__ import annotations

import bz2
import copy
import json
import random
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tests.hostile import texts

ALL_WORKERS = "wbe.workers"
TASK = "tests.support.sample_tasks.Nothing"


@dataclass
class Input:
    """One message. If `raw` is given, a transport stores these bytes instead of it."""

    kind: str
    body: bytes = b""
    properties: dict[str, Any] = field(default_factory=dict)
    headers: dict[str, Any] = field(default_factory=dict)
    raw: bytes | None = None


Inputs = Iterator[Input]


@dataclass(frozen=True)
class Victim:
    """The target of the messages. Messages with its names get further than others."""

    name: str
    #: Generators of the messages that the target handles, by type.
    words: Mapping[str, Callable[[random.Random, Victim], Input]]
    ledger: str | None = None


def _ids(chance: random.Random) -> str:
    return str(uuid.UUID(int=chance.getrandbits(128)))


def _message(kind: str, body: Any, **more: Any) -> Input:
    headers = more.pop("headers", {})
    return Input(
        kind,
        json.dumps(body).encode(),
        {"type": kind, "content_type": "application/json", "content_encoding": "utf-8", **more},
        {"wbe-version": "1", **headers},
    )


# Valid messages.


def _request(chance: random.Random, victim: Victim) -> Input:
    body = {
        "action": chance.choice(("execute", "revert")),
        "arguments": {},
        "task_cls": chance.choice((TASK, TASK, "tests.support.sample_tasks.Missing", "os.system")),
        "task_name": "hostile",
        "task_version": [1, 0],
    }
    if chance.random() < 0.3:
        body["result"] = ["failure", copy.deepcopy(_FAILURE)]
        body["failures"] = {"a": copy.deepcopy(_FAILURE)}
    headers: dict[str, Any] = {"wbe-epoch": chance.choice((1, 1, 2, 7)), "wbe-attempt": 1}
    if victim.ledger is not None and chance.random() < 0.5:
        headers["wbe-ledger"] = victim.ledger
    return _message(
        "REQUEST", body, correlation_id=_ids(chance), reply_to="nobody-here", headers=headers
    )


def _question(chance: random.Random, victim: Victim) -> Input:
    return _message("NOTIFY", {}, reply_to="nobody-here", headers={"wbe-period": 5.0})


def _asked(chance: random.Random, victim: Victim) -> Input:
    pairs = [[_ids(chance), chance.choice((1, 5, 2**40))] for _ in range(chance.choice((1, 9)))]
    return _message("wbe-ask", {"asked": pairs}, reply_to="nobody-here", headers={"wbe-ask": 1})


def _cancel(chance: random.Random, victim: Victim) -> Input:
    return _message("wbe-cancel", {"cancel": [[_ids(chance), chance.choice((1, 9, 10**30))]]})


def _control(chance: random.Random, victim: Victim) -> Input:
    return _message("wbe-control", {"do": "resume"})


def _announcement(chance: random.Random, victim: Victim) -> Input:
    body = {"topic": chance.choice(("t", "video.hd")), "tasks": ["hostile.Task", "hostile.Other"]}
    headers = {
        "wbe-worker": f"host-{chance.randrange(200)}-beef",
        "wbe-formats": [1],
        "wbe-state": chance.choice(("ready", "beat", "stopped")),
        "wbe-slots": 4,
        "wbe-running": 1,
        "wbe-period": 5.0,
        "wbe-time": 1e9,
        "wbe-ids": [_ids(chance)],
        "wbe-life": {},
    }
    return _message("NOTIFY", body, headers=headers)


def _answer(chance: random.Random, victim: Victim) -> Input:
    state = chance.choice(("WAITING", "PENDING", "RUNNING", "SUCCESS", "FAILURE", "EVENT"))
    data: dict[str, Any] = {}
    if state == "EVENT":
        data = {"event_type": "update_progress", "details": {"progress": 0.5}}
    elif state == "SUCCESS":
        data = {"result": chance.choice((None, 7, "x", [1, 2]))}
    elif state == "FAILURE":
        data = {"result": copy.deepcopy(_FAILURE)}
    headers = {"wbe-epoch": 1, "wbe-seq": 1, "wbe-worker": "host-1-beef", "wbe-started": 1e9}
    if chance.random() < 0.2:
        headers["wbe-ask"] = chance.choice((0, 1, 2**53))
    if chance.random() < 0.2:
        headers["wbe-lost"] = 1
    body = {"state": state, "data": data}
    return _message("RESPONSE", body, correlation_id=_ids(chance), headers=headers)


_FAILURE: dict[str, Any] = {
    "exception_str": "bad",
    "traceback_str": None,
    "exc_type_names": ["ValueError", "Exception"],
    "exc_args": ["bad"],
    "exc_attributes": {"errno": 2, "filename": {"bytes": "eA=="}},
    "notes": ["worse"],
    "version": 1,
}
_FAILURE |= {"members": [dict(_FAILURE)], "causes": [dict(_FAILURE)], "has_implicit_cause": True}

WORKER = {
    "REQUEST": _request,
    "NOTIFY": _question,
    "wbe-ask": _asked,
    "wbe-cancel": _cancel,
    "wbe-control": _control,
}
ENGINE = {"NOTIFY": _announcement, "RESPONSE": _answer}


# Changes.


def _places(tree: Any, places: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in pairs:
        places.append((tree, key))
        if isinstance(value, dict | list):
            _places(value, places)
    return places


def _bend(chance: random.Random, tree: Any) -> None:
    """Remove, replace or add one value at a random place."""
    places = _places(tree, [])
    if not places or chance.random() < 0.15:
        if isinstance(tree, dict):
            tree[chance.choice(("extra", "", "__type__", "$ref"))] = texts.value(chance)
        return
    held, key = chance.choice(places)
    if chance.random() < 0.3:
        del held[key]
    else:
        held[key] = texts.value(chance)


def _bent_body(chance: random.Random, message: Input) -> None:
    tree = json.loads(message.body)
    for _ in range(chance.choice((1, 1, 1, 3))):
        _bend(chance, tree)
    if json.loads(message.body).get("do") != tree.get("do") and tree.get("do") in texts.ORDERS:
        tree["do"] = "?"
    message.body = json.dumps(tree).encode()


def _bent_headers(chance: random.Random, message: Input) -> None:
    for _ in range(chance.choice((1, 1, 4))):
        name = chance.choice((*message.headers, *texts.HEADERS))
        message.headers[name] = texts.value(chance)


def _bent_properties(chance: random.Random, message: Input) -> None:
    name = chance.choice(("type", "correlation_id", "reply_to", "content_type", "content_encoding"))
    if chance.random() < 0.2:
        message.properties.pop(name, None)
    else:
        message.properties[name] = texts.text(chance)


def _another_text(chance: random.Random, message: Input) -> None:
    message.body = texts.body(chance, message.body)


def _packed(chance: random.Random, message: Input) -> None:
    """Use a small body that expands to many megabytes."""
    message.headers["compression"] = chance.choice(texts.COMPRESSIONS)
    message.body = chance.choice((_BOMB, message.body, b"", bz2.compress(message.body)))


_BOMB = bz2.compress(bytes(30_000_000))


def _untouched(chance: random.Random, message: Input) -> None:
    """Leave the message valid; it answers no request."""


_BENDS: tuple[tuple[int, Callable[[random.Random, Input], None]], ...] = (
    (6, _bent_body),
    (4, _bent_headers),
    (4, _bent_properties),
    (5, _another_text),
    (1, _packed),
    (2, _untouched),
)


def sound(seed: int, victim: Victim, kinds: Sequence[str]) -> Iterator[Input]:
    """Yield an endless sequence of valid messages."""
    chance = random.Random(f"{seed} {victim.name} sound")
    while True:
        yield victim.words[chance.choice(kinds)](chance, victim)


def inputs(seed: int, victim: Victim, raw: bool) -> Iterator[Input]:
    """Yield an endless sequence that depends only on the seed.

    :param raw: include bytes that no transport writes.
    """
    chance = random.Random(f"{seed} {victim.name}")
    weights = [weight for weight, _ in _BENDS]
    bends = [bend for _, bend in _BENDS]
    while True:
        kind = chance.choice(tuple(victim.words))
        message = victim.words[kind](chance, victim)
        bend = chance.choices(bends, weights)[0]
        bend(chance, message)
        if message.properties.get("reply_to") == ALL_WORKERS:
            # a reply to all workers would be counted, too
            message.properties["reply_to"] = "nobody-here"
        message.kind = f"{kind}, {bend.__name__.strip('_').replace('_', ' ')}"
        if raw and chance.random() < 0.2:
            message.raw = texts.raw(chance, message, victim.ledger)
            message.kind = f"{kind}, raw"
        yield message
