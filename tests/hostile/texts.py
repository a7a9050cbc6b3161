"""Values, texts and bytes that break code without validation."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tests.hostile.inputs import Input

#: Orders that would end or stop the worker under test.
ORDERS = ("suspend", "drain", "stop")

COMPRESSIONS = ("application/x-gzip", "application/x-bz2", "zlib", "gzip", "bzip2", "no such")

HEADERS = (
    "wbe-version", "wbe-attempt", "wbe-epoch", "wbe-seq", "wbe-worker", "wbe-slots", "wbe-running",
    "wbe-ids", "wbe-time", "wbe-life", "wbe-lost", "wbe-queue", "wbe-period", "wbe-state",
    "wbe-formats", "wbe-ledger", "wbe-ask", "wbe-started", "wbe-ended", "timelimit", "expires",
    "root_id", "id", "retries", "task", "wbe-software", "x-match", "kwargsrepr",
)  # fmt: skip

TEXTS = (
    "", " ", ".", "..", "../../x", "a/b", "a.b", "CON", "*", "#", "wbe.workers", "wbe.engines",
    "amq.direct", "nobody-here", "x" * 120, "x" * 121, "x" * 255, "zero\0", "two\nlines",
    "2026-01-01 00:00:00 ERROR forged", "\x1b[31mred", "ünïcödé", "\U0001f4a5", "REQUEST",
    "NOTIFY", "RESPONSE", "HEARTBEAT", "wbe-ask", "null", "{}", "SUCCESS", "PENDING", "ready",
    "application/x-python-serialize", "application/x-yaml", "application/x-msgpack", "utf-16",
    "binary", "punycode", "unicode_escape", "rot13", "tests.support.sample_tasks.Echo",
    "%s%s%n", "{0}",
)  # fmt: skip

_NUMBERS = (0, 1, -1, 2, 999, 2**31, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), 0.5, -0.5, 1e308)


def text(chance: random.Random) -> str:
    return chance.choice(TEXTS)


def value(chance: random.Random, depth: int = 0) -> Any:
    """Return a random value that JSON and the headers of RabbitMQ can encode."""
    which = chance.randrange(9 if depth < 3 else 6)
    if which < 2:
        return text(chance)
    if which < 4:
        return chance.choice(_NUMBERS)
    if which == 4:
        return chance.choice((None, True, False))
    if which == 5:
        return "x" * chance.choice((300, 70_000) if not depth else (300,))
    if which == 6:
        return [
            value(chance, depth + 1) for _ in range(chance.choice((0, 1, 3, 20)) // (depth + 1))
        ]
    if which == 7:
        return {text(chance): value(chance, depth + 1) for _ in range(chance.choice((0, 1, 4)))}
    return {"__type__": "decimal", "__value__": "1E+999999999"}


def _nested(chance: random.Random) -> bytes:
    depth = chance.choice((50, 101, 1000, 100_000))
    opening, closing = chance.choice(((b"[", b"]"), (b'{"a":', b"}")))
    return opening * depth + chance.choice((b"1", b"")) + closing * chance.choice((depth, 0))


_BODIES = (
    b"", b"null", b"[]", b"{}", b"0", b'"x"', b"true", b"NaN", b"-Infinity", b"1e400", b"\xff\xfe",
    b"\xef\xbb\xbf{}", "{}".encode("utf-16"), b'{"a":1,"a":2}', b'{"topic":"\\ud800","tasks":[]}',
    b"{" + b'"k":1,' * 1000, b"9" * 5000, b"-" + b"9" * 5000, b'{"state":' + b"9" * 5000 + b"}",
    b"{} {}", b"{'a': 1}", b"\x80\x04]\x94.", b"!!python/object:os.system x", b"\0" * 100,
    b'{"asked":[' + b'["a",1],' * 600 + b'["a",1]]}', b'{"cancel":[["a",' + b"9" * 4000 + b"]]}",
    b'{"asked":[["a",' + b"9" * 4000 + b"]]}", b'{"asked":[["a",-1],["a",1],["a",1]]}',
    b'{"topic":"t","tasks":[' + b'"a",' * 100_000 + b'"a"]}',
    b'{"topic":"t","tasks":["a","a","a","' + b"x" * 70_000 + b'"]}',
)  # fmt: skip


def body(chance: random.Random, valid: bytes) -> bytes:
    """Return another body, or a damaged copy of the valid one."""
    which = chance.randrange(5)
    if which == 0:
        return valid[: chance.randrange(len(valid))]
    if which == 1:
        return _flipped(chance, valid)
    if which == 2:
        return _nested(chance)
    if which == 3:
        return chance.randbytes(chance.choice((1, 40, 5000)))
    return chance.choice(_BODIES)


def _flipped(chance: random.Random, data: bytes) -> bytes:
    flipped = bytearray(data)
    for _ in range(chance.choice((1, 1, 5))):
        if flipped:
            flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
    return bytes(flipped)


_HEAD = (
    "v",
    "exchange",
    "routing_key",
    "content-type",
    "content-encoding",
    "properties",
    "headers",
    "size",
)


def raw(chance: random.Random, message: Input, ledger: str | None) -> bytes:
    """Return bytes that transports can find in their queues and folders, and never write."""
    head: dict[str, Any] = {
        "v": 1,
        "exchange": "default",
        "routing_key": "x",
        "content-type": "application/json",
        "content-encoding": "utf-8",
        "properties": message.properties,
        "headers": message.headers,
        "size": len(message.body),
    }
    which = chance.randrange(7)
    if which < 3:
        for _ in range(chance.choice((1, 1, 3))):
            name = chance.choice(_HEAD)
            if chance.random() < 0.3:
                head.pop(name, None)
            else:
                head[name] = value(chance)
    data = json.dumps(head).encode() + b"\n" + message.body
    if which == 3:
        return data[: chance.randrange(len(data))]
    if which == 4:
        return _flipped(chance, data)
    if which == 5:
        return chance.choice((b"", b"\n", b"\n\n", b"!", b"!\n", b"! \n{}", chance.randbytes(300)))
    if which == 6:  # a false row of the ledger
        row = (
            chance.choice(("a", _ANY, "a b", "*", "", "x" * 5000, "a:b{c}", "%s")),
            chance.choice(
                ("1", "0", "-1", "x", "1e309", "nan", "inf", "9" * 400, "", "1 2", "0x10")
            ),
            chance.choice((ledger or "d", "d", "", "x" * 300)),
        )
        return b"!" + " ".join(row).encode() + chance.choice((b"\n", b"")) + data
    return data


_ANY = "00000000-0000-4000-8000-000000000000"
