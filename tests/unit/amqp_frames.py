"""AMQP frames as py-amqp writes them."""

from __future__ import annotations

import struct
from typing import Any

import amqp
from amqp import method_framing, serialization

MOST = 4096


class Peer:
    """Connection of py-amqp that records written frames."""

    frame_max = MOST
    bytes_sent = bytes_recv = 0

    def __init__(self) -> None:
        self.said = b""
        self.heard: list[Any] = []

    def write(self, data: Any) -> None:
        self.said += bytes(data)

    def hear(self, said: bytes) -> Any:
        """Return the message that py-amqp reads from these frames."""
        handle = method_framing.frame_handler(self, lambda *told: self.heard.append(told))
        at = 0
        while at < len(said):
            kind, channel, size = struct.unpack_from(">BHI", said, at)
            handle((kind, channel, said[at + 7 : at + 7 + size]))
            at += size + 8
        return self.heard[-1][3]


def written(message: amqp.Message, method: tuple[int, int], args: bytes) -> bytes:
    peer = Peer()
    method_framing.frame_writer(peer, peer)(1, 7, method, args, message)
    return peer.said


def delivered(message: amqp.Message, tag: int = 5, again: bool = False) -> bytes:
    args = serialization.dumps("sLbss", ("consumer", tag, again, "x", "key"))
    return written(message, (60, 60), args)
