"""NOTIFY: queries of engines, and announcements and heartbeats of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from wbengine import exceptions as exc
from wbengine._introspection import object_names
from wbengine.engines.worker_based import protocol as pr
from wbengine.engines.worker_based._messages import envelope as env
from wbengine.engines.worker_based._messages import headers as hd
from wbengine.engines.worker_based._messages import worker_life as lives

#: Minimum heartbeat period, of a worker or requested by an engine.
MIN_PERIOD_SECONDS: Final = 0.5

#: Maximum number of ids in a message: see `worker_life`.
_MAX_IDS: Final = 1500

# Kinds of a worker's NOTIFY.
READY: Final = "ready"
STOPPED: Final = "stopped"
BEAT: Final = "beat"


class Query(NamedTuple):
    """The NOTIFY of an engine: it requests announcements, or it is an echo for the engine itself.

    TaskFlow's workers ignore the headers.
    """

    reply_to: str | None
    #: Heartbeat period that the engine requests.
    period: float | None = None
    #: Name of the engine, if it sends the message to itself to check that it receives messages.
    echo: str | None = None

    def headers(self) -> dict[str, Any]:
        headers: dict[str, Any] = {hd.WBE_VERSION: hd.VERSION}
        if self.period is not None:
            headers[hd.WBE_PERIOD] = self.period
        if self.echo is not None:
            headers[hd.WBE_ECHO] = self.echo
        return headers

    def to_message(self, to: str) -> env.Envelope:
        return env.Envelope(pr.NOTIFY, {}, to, reply_to=self.reply_to, headers=self.headers())

    @classmethod
    def from_message(cls, message: env.Envelope) -> Query:
        return cls(message.reply_to, message.seconds(hd.WBE_PERIOD), message.text(hd.WBE_ECHO))


class Heartbeat(NamedTuple):
    """The NOTIFY of a worker. Without `extended`, the worker is TaskFlow's."""

    topic: str
    tasks: Sequence[str]
    extended: bool = True
    worker: str | None = None
    #: READY, STOPPED or BEAT.
    state: str | None = None
    slots: int | None = None
    running: int | None = None
    life: lives.Life | None = None
    #: Version of wbengine.
    software: str | None = None
    #: Digest of the ledger.
    ledger: str | None = None
    period: float | None = None
    #: Formats of requests that the worker reads.
    formats: Sequence[int] = ()
    #: Ids of the requests that the worker runs for the receiving engine; None in broadcasts, and if
    #: they are too many for a message.
    ids: Sequence[str] | None = None
    #: Unix time of sending on the clock of the worker (see `stamp`).
    sent_at: float | None = None
    #: Version of the user's code.
    code: str | None = None

    def to_message(self, to: str) -> env.Envelope:
        """Return the message for an engine, or for all engines."""
        body = {"topic": self.topic, "tasks": list(self.tasks)}
        if not self.extended:
            return env.Envelope(pr.NOTIFY, body, to)
        values = {
            hd.WBE_VERSION: hd.VERSION,
            hd.WBE_WORKER: self.worker,
            hd.WBE_STATE: self.state,
            hd.WBE_SLOTS: self.slots,
            hd.WBE_RUNNING: self.running,
            hd.WBE_LIFE: self.life.to_header() if self.life is not None else None,
            hd.WBE_SOFTWARE: self.software,
            hd.WBE_LEDGER: self.ledger,
            hd.WBE_PERIOD: self.period,
            hd.WBE_FORMATS: list(self.formats) or None,
            hd.WBE_IDS: None if len(self.ids or ()) > _MAX_IDS else self.ids,
            hd.WBE_TIME: self.sent_at,
            hd.WBE_CODE: self.code,
        }
        headers = {name: value for name, value in values.items() if value is not None}
        return env.Envelope(pr.NOTIFY, body, to, headers=headers)

    @classmethod
    def from_message(cls, message: env.Envelope) -> Heartbeat:
        """Read a message with a validated body. Invalid headers are ignored, except `wbe-worker`.

        :raises InvalidFormat: if the name of the worker or its topic is not valid.
        """
        headers, topic = message.headers, message.body["topic"]
        text, extended = message.text, hd.WBE_VERSION in message.headers
        try:
            if hd.WBE_WORKER in headers:
                label = object_names.check_label(hd.WBE_WORKER, headers[hd.WBE_WORKER])
                if label in (env.ALL_WORKERS, env.ALL_ENGINES):
                    raise ValueError(
                        f"{hd.WBE_WORKER} must be the name of one process, got {label!r}"
                    )
            if extended:
                object_names.check_label("topic", topic)
        except ValueError as error:
            raise exc.InvalidFormat(str(error)) from None
        slots, running = message.number(hd.WBE_SLOTS, -1), message.number(hd.WBE_RUNNING, -1)
        ids = headers.get(hd.WBE_IDS)
        return cls(
            topic,
            message.body["tasks"],
            extended,
            headers.get(hd.WBE_WORKER),
            text(hd.WBE_STATE),
            slots if slots >= 0 else None,
            running if running >= 0 else None,
            lives.Life.from_header(headers.get(hd.WBE_LIFE)),
            text(hd.WBE_SOFTWARE),
            text(hd.WBE_LEDGER),
            message.seconds(hd.WBE_PERIOD),
            _numbers(headers.get(hd.WBE_FORMATS)),
            [each for each in ids if isinstance(each, str)] if isinstance(ids, list) else None,
            message.seconds(hd.WBE_TIME),
            text(hd.WBE_CODE),
        )


def _numbers(value: Any) -> tuple[int, ...]:
    return tuple(each for each in value if type(each) is int) if isinstance(value, list) else ()


def stamp(message: env.Envelope, now: float) -> None:
    """Set the time at which a worker sends its NOTIFY."""
    message.headers[hd.WBE_TIME] = now


def worker_and_time(headers: Mapping[str, Any]) -> tuple[Any, Any] | None:
    """Return the worker of a NOTIFY and its time of sending; None for the kind BEAT."""
    if headers.get(hd.WBE_STATE) == BEAT:
        return None
    return headers.get(hd.WBE_WORKER), headers.get(hd.WBE_TIME)
