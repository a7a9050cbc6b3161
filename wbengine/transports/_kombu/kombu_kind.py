"""The kind of all transports of kombu except RabbitMQ."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

import kombu
from kombu.transport import TRANSPORT_ALIASES, virtual

from wbengine._imports import installing
from wbengine._introspection import object_names
from wbengine.transports._kinds import KombuKind, Target, unknown

if TYPE_CHECKING:
    from wbengine.transports._publishing import Writer
    from wbengine.transports._receiving import ReceivingLink

#: Extras of kombu whose name is not that of the transport.
_EXTRAS: Final[Mapping[str, str]] = {"kafka": "confluentkafka", "sqla": "sqlalchemy"}
#: Transports of kombu for which wbengine has an extra.
_REDIS: Final = ("redis", "rediss", "sentinel")


@dataclass(frozen=True)
class KombuOptions:
    """Options are passed to kombu unchecked."""


class OtherKind(KombuKind):
    """Transports that wbengine passes to kombu unchanged, by alias, class or URL."""

    name = "kombu"
    options = KombuOptions

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        target = Target(url, transport, self, options)
        if transport is None and "://" not in (url or ""):
            raise ValueError(
                f"The URL of a broker must begin with its transport, as in amqp://{target.shown}"
            )
        return target

    def check(self, target: Target) -> bool:
        try:
            return isinstance(target.connect().transport, virtual.Transport)
        except (KeyError, ImportError, AttributeError, NameError) as error:
            name = str(target.transport or str(target.url).partition("://")[0])
            if isinstance(error, KeyError):
                raise ValueError(unknown(name)) from error
            raise ValueError(_missing_library(name, error)) from error

    def check_names(self, target: Target) -> None:
        name = str(target.transport or target.url).partition("://")[0].partition("+")[0]
        # The class of another library's transport contains a dot or a colon.
        if not {".", ":"} & set(name) and name not in TRANSPORT_ALIASES:
            raise ValueError(unknown(name))

    def system(self, target: Target) -> str:
        name = getattr(target.transport, "driver_type", None) or target.transport
        return str(name or str(target.url).partition("://")[0])

    def link(self, connection: Any, layout: Any, replies_from: float) -> ReceivingLink:
        # Not at the start: an explanation of an error loads all kinds.
        make = object_names.load("wbengine.transports._kombu.kombu_link:KombuLink")
        link: ReceivingLink = make(connection, layout)
        return link

    def writer(self, connection: Any, layout: Any, outbox: Any, is_careful: bool) -> Writer:
        make = object_names.load("wbengine.transports._kombu.kombu_writer:KombuWriter")
        writer: Writer = make(connection, layout)
        return writer

    def connect(self, target: Target, number: int, **kwargs: Any) -> kombu.Connection:
        settings: dict[str, Any] = {"transport_options": dict(target.options), **kwargs}
        try:
            return kombu.Connection(target.url, transport=target.transport, **settings)
        except ValueError:
            raise self.malformed(target) from None


def _missing_library(name: str, error: Exception) -> str:
    # kombu may raise NameError for missing imports.
    kind = name.partition("+")[0].lower()
    if kind in _REDIS:
        return installing.needs(f"transport {name!r}", "redis-py", "redis")
    extra = _EXTRAS.get(kind, kind)
    if extra in metadata.metadata("kombu").get_all("Provides-Extra", []):
        instruction = installing.pip("install", f"kombu[{extra}]")
    else:
        instruction = str(error)
    return f"transport {name!r} requires a library that is not installed: {instruction}"


KIND: Final = OtherKind()
