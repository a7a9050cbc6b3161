"""How a task of a flow asks Celery's workers: its options, and the message they make."""

from __future__ import annotations

import datetime as dt
import math
import os
import socket
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from wbengine import _names, limits
from wbengine.interop.celery.protocol import codec, serializers, times
from wbengine.interop.celery.protocol.message import TaskMessage
from wbengine.interop.celery.protocol.wire import Wire

__all__ = ["Options"]

_FURTHEST: Final = 10 * 365 * 86400.0


@dataclass(frozen=True, slots=True)
class Options:
    """What every message of a task says besides its arguments.

    :raises ValueError: a number is out of its range, or there is no such serializer.
    :raises TypeError: something is of the wrong kind.
    """

    task: str
    expires: float | dt.datetime | None = None
    countdown: float | None = None
    eta: dt.datetime | None = None
    priority: int | None = None
    timelimit: limits.TimeLimit = limits.UNLIMITED
    serializer: str = "json"
    ignore_result: bool = False
    shadow: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_seconds("countdown", self.countdown)
        if self.countdown is not None and self.eta is not None:
            raise ValueError(f"task {self.task!r} is given both countdown and eta: give one")
        for name, moment in (("eta", self.eta), ("expires", self.expires)):
            if isinstance(moment, dt.datetime):
                if moment.tzinfo is None:
                    raise ValueError(f"{name} needs a time zone: {moment!r} has none")
            elif name == "expires":
                _check_seconds("expires", moment)
            elif moment is not None:
                raise TypeError(f"{name} must be a datetime with a time zone, not {moment!r}")
        if not (self.shadow is None or isinstance(self.shadow, str)):
            raise TypeError(f"shadow must be a name, not {self.shadow!r}")
        if not (
            isinstance(self.headers, Mapping) and all(isinstance(n, str) for n in self.headers)
        ):
            raise TypeError(f"headers must be a mapping of names, not {self.headers!r:.80}")
        if self.serializer not in serializers.MIME_TYPES:
            near = _names.hint(self.serializer, serializers.MIME_TYPES)
            raise ValueError(f"serializer {self.serializer!r} is none{near}")
        wrong = self.priority is not None and not (
            type(self.priority) is int and 0 <= self.priority <= 255
        )
        if wrong:
            raise ValueError(f"priority must be a number from 0 to 255, not {self.priority!r}")

    def wire(
        self, name: str, args: Sequence[Any], kwargs: Mapping[str, Any], reply_to: str | None
    ) -> Wire:
        """A message that asks for the task now, under the id `name`.

        :raises NotEncodable: the serializer cannot write the arguments.
        """
        now, eta, expires = time.time(), self.eta, self.expires
        if self.countdown is not None:
            eta = times.after(now, self.countdown)
        if expires is not None and not isinstance(expires, dt.datetime):
            expires = times.after(now, expires)
        message = TaskMessage(
            self.task,
            name,
            tuple(args),
            dict(kwargs),
            shadow=self.shadow,
            root_id=name,
            eta=eta,
            expires=expires,
            timelimit=self.timelimit,
            origin=f"{os.getpid()}@{socket.gethostname()}",
            ignore_result=self.ignore_result,
            reply_to=reply_to,
            priority=self.priority,
            extra=self.headers,
        )
        return codec.encode(message, 2, self.serializer)


def _check_seconds(name: str, value: Any) -> None:
    if value is None:
        return
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} must be seconds, not {value!r}")
    if not 0 <= value < min(math.inf, _FURTHEST):
        raise ValueError(f"{name} must be seconds from 0, not {value!r}")
