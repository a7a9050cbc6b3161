"""Signed messages that were changed in transit: no message with a different content is accepted."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from typing import Any

from tests.support.signed import AUDIENCE, KINDS, TOPIC, InvalidMessageError, Party, read, sealed
from wbengine._concurrency import manual_clock
from wbengine._security import keys
from wbengine.engines.worker_based import dispatcher, proxy
from wbengine.engines.worker_based._messages import signing

NOW = 1_000_000.0


@dataclass
class Report:
    """Counts of changed messages that could be decoded, by result."""

    read: int = 0
    refused: int = 0
    #: Accepted messages whose content differs from the signed one.
    believed: int = 0
    #: Messages that raised an unexpected exception.
    deaths: int = 0


def try_mutations(examples: int, seed: int) -> Report:
    """Try half of the examples with one shared key, and half with a key for each role."""
    report = Report()
    log = logging.getLogger("wbengine")
    before = log.level
    log.setLevel(logging.CRITICAL)
    try:
        for content in (keys.new(), keys.new(per_role=True)):
            _Trial(content, seed).run(examples // 2, report)
    finally:
        log.setLevel(before)
    return report


class _Trial:
    def __init__(self, content: dict[str, dict[str, Any]], seed: int) -> None:
        self._chance = random.Random(seed)
        clock = manual_clock.ManualClock(NOW)
        parties = {role: Party(secrets, clock) for role, secrets in content.items()}
        speakers = {
            kind: parties.get(role) or parties[keys.ANY] for kind, (role, _) in KINDS.items()
        }
        self._sent = {kind: sealed(who.sign(kind)) for kind, who in speakers.items()}
        hearer = parties.get(keys.ENGINE) or parties[keys.ANY]
        self._heard: list[Any] = []
        handler = dispatcher.Handler(lambda data, message: self._heard.append(message))
        handler.owns_ack = True
        types = {read(data).properties["type"]: handler for data in self._sent.values()}
        self._side = proxy.Proxy(TOPIC, "x", types, url="memory://forging", keys=hearer.ring)
        self._side.signer = hearer.signer
        self._side._audience = set(AUDIENCE)

    def run(self, examples: int, report: Report) -> None:
        side, refused = self._side, self._side.dispatcher.refused
        for _ in range(examples):
            kind = self._chance.choice(list(self._sent))
            assert side.signer is not None
            side.signer._nonces = signing.Nonces()
            try:
                message = read(mutate(self._sent[kind], self._chance))
            except InvalidMessageError:
                continue
            report.read += 1
            self._heard.clear()
            try:
                side._on_message(message)
            except BaseException:
                report.deaths += 1
            for heard in self._heard:
                report.believed += not _says_the_same(heard, read(self._sent[kind]))
        report.refused += refused["untrusted"]
        report.deaths += refused["error"]


def mutate(data: bytes, chance: random.Random) -> bytes:
    """Return a message with small changes in its head or its body, with the correct size."""
    head, _, body = data.partition(b"\n")
    if chance.randrange(2):
        body = _changed(body, chance)
        head = head[: head.rindex(b":") + 1] + b"%d}" % len(body)
    else:
        head = _changed(head, chance)
    return head + b"\n" + body


def _changed(data: bytes, chance: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(chance.choice((1, 1, 1, 2, 5))):
        at = chance.randrange(len(changed) or 1)
        match chance.randrange(6):
            case 0 if changed:
                changed[at] ^= 1 << chance.randrange(8)
            case 1:
                del changed[at : at + chance.choice((1, 1, 8, 64))]
            case 2:
                changed[at:at] = chance.choice(
                    (b"0", b'"', b"{", b"\\u0000", b"\xff", b" ", b"null,")
                )
            # the notation of some encoders for a value that is not a number
            case 3 if b"null" in changed:
                changed[:] = changed.replace(b"null", b"1e999", 1)
            case 4:
                changed[at:at] = changed[at : at + 16]
            case _:
                end = at + chance.randrange(1, 16)
                changed[at:end] = bytes(chance.randrange(256) for _ in range(end - at))
    return bytes(changed)


def _says_the_same(one: Any, other: Any) -> bool:
    """Compare two messages except for routing and priority, which belong to the broker."""

    def said(message: Any) -> Any:
        properties = message.properties
        kind = properties.get("type")
        return (
            kind,
            properties.get("correlation_id"),
            None if kind == "RESPONSE" else properties.get("reply_to"),
            {name: value for name, value in message.headers.items() if name[:2] != "x-"},
            message.body,
        )

    return bool(said(one) == said(other))
