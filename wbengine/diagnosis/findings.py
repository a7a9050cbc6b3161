"""Findings, and the services that are checked."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from wbengine import exceptions, transports
from wbengine._configuration import default_broker
from wbengine.diagnosis._one_line import join_lines

__all__ = ["Finding", "Place", "bad", "good", "line", "note"]


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of a check: its status, a line of text, and how to fix a problem.

    `good` is None if the check was skipped or reports an optional feature.
    """

    check: str
    good: bool | None
    text: str
    fix: str | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return the finding as a JSON object."""
        return {"check": self.check, "good": self.good, "text": self.text, "fix": self.fix}


def good(check: str, text: str) -> Finding:
    return Finding(check, True, text)


def bad(check: str, text: str, fix: str) -> Finding:
    return Finding(check, False, text, fix)


def note(check: str, text: str, fix: str | None = None) -> Finding:
    return Finding(check, None, text, fix)


@dataclass(frozen=True)
class Place:
    """The services to check: broker, ledger, store, job board and payloads.

    `timeout` is in seconds.

    :ivar notify: the settings of notifications, whose progress is in the store.
    """

    exchange: str = "default"
    url: str | None = None
    transport: str | None = None
    transport_options: Mapping[str, Any] = field(default_factory=dict)
    ledger: str | None = None
    keys: str | None = None
    persistence: str | None = None
    board: str | None = None
    timeout: float = 5.0
    notify: Mapping[str, Any] = field(default_factory=dict)
    payloads: str | None = None

    @cached_property
    def target(self) -> transports.Target:
        """The broker.

        :raises ValueError: if the settings are invalid or a package is missing.
        :raises TransportFailure: if the default folder cannot be used.
        """
        url, transport = self.address
        return transports.resolve(url, transport, self.transport_options, exchange=self.exchange)

    @property
    def address(self) -> tuple[str | None, Any]:
        """URL and transport of the broker."""
        return default_broker.choose(
            self.url, self.transport, self.transport_options, self.persistence
        )

    @property
    def has_own_broker(self) -> bool:
        """Whether a setting names the broker, so that workers are probably in use."""
        is_set = self.url is not None or self.transport is not None or self.transport_options
        return bool(is_set or os.environ.get(default_broker.URL_VARIABLE))

    @property
    def is_known(self) -> bool:
        """Whether the settings of the broker are valid."""
        try:
            return bool(self.target)
        except (ValueError, TypeError, ImportError, exceptions.TransportFailure):
            return False

    @property
    def engine_options(self) -> dict[str, Any]:
        """The arguments of engines and workers for this broker."""
        url, transport = self.address
        return {
            "exchange": self.exchange,
            "url": url,
            "transport": transport,
            "transport_options": dict(self.transport_options) or None,
        }


def line(error: BaseException) -> str:
    """Return an error as one line."""
    return join_lines(str(error)) or type(error).__name__
