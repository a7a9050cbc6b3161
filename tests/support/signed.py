"""Signed messages, in the forms in which they are sent and received."""

from __future__ import annotations

import itertools
from typing import Any

from wbengine._concurrency import clocks
from wbengine._security import keys
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import notices, signing, worker_commands
from wbengine.transports import _broker, _encoding
from wbengine.transports._amqp import amqp_frames

TOPIC = "me"
AUDIENCE = (TOPIC, env.ALL_WORKERS, env.ALL_ENGINES, "t.queue")

#: Role of the sender and destination of each kind of message.
KINDS: dict[str, tuple[str, str]] = {
    "request": (keys.ENGINE, "t.queue"),
    "question": (keys.ENGINE, env.ALL_WORKERS),
    "ask": (keys.ENGINE, TOPIC),
    "cancel": (keys.ENGINE, env.ALL_WORKERS),
    "control": (keys.OPERATOR, TOPIC),
    "response": (keys.WORKER, TOPIC),
    "beat": (keys.WORKER, env.ALL_ENGINES),
}


def envelope(kind: str) -> env.Envelope:
    """Return an unsigned message of a kind."""
    ours: dict[str, Any] = {hd.WBE_VERSION: "1"}
    to = KINDS[kind][1]
    match kind:
        case "request":
            body: dict[str, Any] = {
                "action": "execute", "arguments": {"value": "böse \ud83d\ude00"[:5], "n": 5},
                "task_cls": "tests.support.sample_tasks.Echo", "task_name": "echo",
                "task_version": [1, 0],
            }  # fmt: skip
            headers = {
                **ours, "lang": "py", "id": "r1", "retries": 0, hd.WBE_EPOCH: 1,
                hd.WBE_LEDGER: "abc", "timelimit": [1.5, None], hd.EXPIRES: 1e9, "deep": 2**40,
            }  # fmt: skip
            return env.Envelope(pr.REQUEST, body, to, "r1", "engine", headers, 5)
        case "question":
            return env.Envelope(pr.NOTIFY, {}, to, None, "engine", {**ours, hd.WBE_PERIOD: 10.0})
        case "ask":
            return env.Envelope(
                worker_commands.ASK, {"asked": [["r1", 1]]}, to, None, "engine", ours
            )
        case "cancel":
            return env.Envelope(worker_commands.CANCEL, {"cancel": [["r1", 1]]}, to, headers=ours)
        case "control":
            return env.Envelope(worker_commands.CONTROL, {"do": "drain"}, to, headers=ours)
        case "response":
            headers = {**ours, hd.WBE_WORKER: "w", hd.WBE_EPOCH: 1, hd.WBE_STARTED: 1e9 + 0.1}
            body = {"state": "SUCCESS", "data": {"result": "böse"}}
            return env.Envelope(pr.RESPONSE, body, to, "r1", None, headers)
    life = {"state": "idle", "birth": 1e9, "current": [["r1", "t"]], "since": [1.5]}
    headers = {**ours, hd.WBE_WORKER: "w", hd.WBE_STATE: notices.BEAT, hd.WBE_IDS: ["r1"],
               hd.WBE_LIFE: life}  # fmt: skip
    return env.Envelope(pr.NOTIFY, {"topic": "t", "tasks": []}, to, headers=headers)


def received(sent: env.Envelope, layout: str = "json") -> Any:
    """Return the message as received from a wbengine broker ('json') or from an AMQP broker."""
    message = read(sealed(sent))
    if layout == "json":
        return message
    head = amqp_frames.table(sent.signed_headers)
    message.headers, _ = amqp_frames._table(head, 0)
    return message


InvalidMessageError = _encoding.InvalidMessageError


def sealed(sent: env.Envelope) -> bytes:
    """Return the message in the stored form of a wbengine broker."""
    return _encoding.seal(sent, "x")


def read(data: bytes) -> _broker.Delivery:
    """Decode a stored message.

    :raises InvalidMessageError: if the data is not a message.
    """
    delivery = _broker.Delivery("q", None, data, False)
    delivery.parse()
    return delivery


class Party:
    """A participant that signs and verifies with one key file and one clock."""

    def __init__(self, content: dict[str, Any], clock: clocks.Clock, exchange: str = "x") -> None:
        numbers = itertools.count(1)
        self.ring = keys.Keyring(content)
        self.signer = signing.Signer(
            self.ring, clock, lambda: f"n{next(numbers)}", exchange=exchange
        )

    def sign(self, kind: str) -> env.Envelope:
        made = envelope(kind)
        made.signer = self.signer
        return made

    def verify(self, message: Any, audience: Any = AUDIENCE) -> None:
        self.signer.verify(message, audience)
