"""What was found, and where it was looked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from wbengine import exceptions, transports
from wbengine.diagnosis.one_line import joined

__all__ = ["Finding", "Place", "bad", "good", "line", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that was looked at: whether it is as it should be (None: it could not be looked at,
    or need not be), what is there in one line, and how to mend or to have it."""

    check: str
    good: bool | None
    text: str
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """As JSON can hold it."""
        return {"check": self.check, "good": self.good, "text": self.text, "fix": self.fix}


def good(check: str, text: str) -> Finding:
    return Finding(check, True, text)


def bad(check: str, text: str, fix: str) -> Finding:
    return Finding(check, False, text, fix)


def note(check: str, text: str, fix: str | None = None) -> Finding:
    return Finding(check, None, text, fix)


@dataclass(frozen=True)
class Place:
    """Where engines and workers meet, and where flows and jobs are kept; `timeout` in seconds."""

    exchange: str = "default"
    url: str | None = None
    transport: str | None = None
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    ledger: str | None = None
    keys: str | None = None
    persistence: str | None = None
    board: str | None = None
    timeout: float = 5.0

    @cached_property
    def target(self) -> transports.Target:
        """The broker.

        :raises ValueError: it makes no sense, or what it takes is not installed.
        :raises TransportFailure: the default folder cannot be used.
        """
        return transports.resolve(
            self.url, self.transport, self.transport_options, exchange=self.exchange
        )

    @property
    def is_known(self) -> bool:
        """Whether the broker makes sense."""
        try:
            return bool(self.target)
        except (ValueError, TypeError, ImportError, exceptions.TransportFailure):
            return False

    @property
    def engine_options(self) -> dict[str, Any]:
        """What engines and workers are told of the broker."""
        return {
            "exchange": self.exchange,
            "url": self.url,
            "transport": self.transport,
            "transport_options": dict(self.transport_options) or None,
        }


def line(error: BaseException) -> str:
    """An error in one line."""
    return joined(str(error)) or type(error).__name__
