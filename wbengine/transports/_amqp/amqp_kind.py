"""The kind of RabbitMQ: heartbeats, timeouts and the check of its certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import parse_qsl, urlsplit

import kombu
from amqp import exceptions as amqp_errors

from wbengine._concurrency import eventlet
from wbengine._configuration import named_options, server_urls, tls_options
from wbengine._introspection import object_names
from wbengine.transports._amqp import amqp_socket
from wbengine.transports._kinds import KombuKind, Target

if TYPE_CHECKING:
    from wbengine.transports._publishing import Writer
    from wbengine.transports._receiving import ReceivingLink

#: Default of the transport option `heartbeat`. Both sides close the connection after two missing
#: heartbeats.
HEARTBEAT_SECONDS: Final = 10.0

#: Maximum that fits into AMQP's tune method.
_MAX_HEARTBEAT_SECONDS: Final = 65535

_SECURE: Final = "amqps"


@dataclass(frozen=True)
class AMQPOptions(tls_options.TLSOptions):
    """Options of the transport. `heartbeat` and those with `ssl_` are also options of the URL."""

    heartbeat: float = named_options.option(
        HEARTBEAT_SECONDS, "Seconds between heartbeats; 0: none."
    )
    ssl_server_hostname: str | None = named_options.option(None, "The name in the certificate.")
    ssl: object = named_options.option(None, "As in kombu, without a context.")
    client_properties: object = named_options.option(None, "As in py-amqp.")
    login_method: object = named_options.option(None, "As in py-amqp.")
    login_response: object = named_options.option(None, "As in py-amqp.")
    authentication: object = named_options.option(None, "As in py-amqp.")
    locale: object = named_options.option(None, "As in py-amqp.")
    channel_max: object = named_options.option(None, "As in py-amqp.")
    frame_max: object = named_options.option(None, "As in py-amqp.")
    connect_timeout: object = named_options.option(None, "As in py-amqp.")
    read_timeout: object = named_options.option(None, "As in py-amqp.")
    write_timeout: object = named_options.option(None, "As in py-amqp.")
    socket_settings: object = named_options.option(None, "As in py-amqp.")
    confirm_publish: object = named_options.option(None, "As in py-amqp.")


_OPTIONS: Final = named_options.option_names(AMQPOptions)
_URL_OPTIONS: Final = (
    "heartbeat",
    *named_options.option_names(tls_options.TLSOptions),
    "ssl_server_hostname",
)
#: Keys of the option `ssl`.
_SSL_OPTIONS: Final = (
    *(name.removeprefix("ssl_") for name in _URL_OPTIONS[1:]),
    "ssl_version",
    "tls_minimum_version",
    "tls_maximum_version",
)


class InvalidURLError(ValueError):
    """A URL or its options are invalid. The message contains no secret."""


def alternates(url: str | None) -> tuple[str | None, ...]:
    """Split a URL that contains several brokers, separated by `;`."""
    return tuple(url.split(";")) if url else (None,)


def arguments(
    url: str | None, transport: Any, options: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """Return a URL without its query, and the other arguments of `kombu.Connection`.

    `amqps` (or an option `ssl`) enables TLS with a required certificate that must match the host of
    the URL. Only an explicit `cert_reqs` of none disables this check.

    :raises ValueError: if the query of the URL or an option is unknown or invalid.
    """
    remaining = dict(options)
    # The check of the certificate applies to all ways in which TLS is enabled.
    secure = remaining.pop("ssl", None)
    named = secure if isinstance(secure, Mapping) else {}
    try:
        named_options.check_known("a RabbitMQ", remaining, _OPTIONS)
        named_options.check_known("ssl of a RabbitMQ", named, _SSL_OPTIONS)
    except ValueError as error:
        raise InvalidURLError(str(error)) from None
    given_tls: dict[str, Any] = {f"ssl_{name}": value for name, value in named.items()}
    given_tls |= {name: remaining.pop(name) for name in options if name.startswith("ssl_")}
    given_tls = {name: value for name, value in given_tls.items() if value is not None}
    scheme, bare = transport, url
    if url is not None:
        try:
            # Also the rest of a URL with ";" in its password, which has no scheme.
            server_urls.split("a RabbitMQ URL", url)
        except ValueError as error:
            raise InvalidURLError(str(error)) from None
    if url is not None and "://" in url:
        bare, _, query = url.partition("?")
        scheme = transport or bare.partition("://")[0].lower()
        for name, value in parse_qsl(query):
            if name not in _URL_OPTIONS:
                raise InvalidURLError(
                    f"The options of a RabbitMQ URL must be among {', '.join(_URL_OPTIONS)}, got"
                    f" {name[:40]!r}{object_names.hint(name, _URL_OPTIONS)}"
                )
            (remaining if name == "heartbeat" else given_tls).setdefault(name, value)
    # py-amqp's own option `heartbeat` would have precedence over the argument.
    heartbeat = _heartbeat(remaining.pop("heartbeat", HEARTBEAT_SECONDS))
    result: dict[str, Any] = {"heartbeat": heartbeat, "transport_options": remaining}
    if secure or given_tls or scheme == _SECURE:
        result["ssl"] = _tls_arguments(given_tls, bare)
    return bare, result


def _heartbeat(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _MAX_HEARTBEAT_SECONDS:
        raise InvalidURLError(
            f"heartbeat must be 0 (none) to {_MAX_HEARTBEAT_SECONDS} seconds, got {value!r}"
        )
    return seconds


def _tls_arguments(options: Mapping[str, Any], url: str | None) -> dict[str, Any]:
    try:
        read = {
            name.removeprefix("ssl_"): tls_options.read(name, value)
            for name, value in options.items()
        }
    except ValueError as error:
        raise InvalidURLError(str(error)) from None
    read["cert_reqs"] = ssl.VerifyMode[f"CERT_{read.get('cert_reqs', 'required')}".upper()]
    check_hostname = read.pop("check_hostname", True)
    if not check_hostname or read["cert_reqs"] == ssl.CERT_NONE:
        # Without a verified certificate, its name is not checked.
        read.pop("server_hostname", None)
    elif not read.get("server_hostname"):
        read["server_hostname"] = (urlsplit(url).hostname if url else None) or "localhost"
    return read


class RabbitMQKind(KombuKind):
    """RabbitMQ, reached by a subclass of kombu's py-amqp transport."""

    name = "rabbitmq"
    options = AMQPOptions
    is_amqp = True
    diagnosis = "wbengine.diagnosis._rabbitmq_checks"

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        return Target(url, transport, self, options)

    def check(self, target: Target) -> bool:
        eventlet.check_poll(f"the broker at {target.shown}")
        self.check_names(target)
        files = self.connect(target, 0).ssl or {}
        tls_options.check_files({f"ssl_{name}": path for name, path in files.items()})
        return False

    def check_names(self, target: Target) -> None:
        for number in range(len(alternates(target.url))):
            self.connect(target, number)

    def link(self, connection: Any, layout: Any, replies_from: float) -> ReceivingLink:
        # Not at the start: an explanation of an error loads all kinds.
        make = object_names.load("wbengine.transports._amqp.amqp_link:AmqpLink")
        link: ReceivingLink = make(connection, layout, replies_from)
        return link

    def writer(self, connection: Any, layout: Any, outbox: Any, is_careful: bool) -> Writer:
        make = object_names.load("wbengine.transports._amqp.amqp_writer:AmqpWriter")
        writer: Writer = make(connection, layout, outbox, is_careful)
        return writer

    def connect(self, target: Target, number: int, **kwargs: Any) -> kombu.Connection:
        brokers = alternates(target.url)
        try:
            url, settings = arguments(
                brokers[number % len(brokers)], target.transport, target.options
            )
            return kombu.Connection(url, transport=amqp_socket.Transport, **{**settings, **kwargs})
        except InvalidURLError as error:
            raise ValueError(str(error)) from None
        except ValueError:
            raise self.malformed(target) from None

    def explain(self, error: BaseException) -> str | None:
        match error:
            case amqp_errors.ConsumerCancelled():
                return "a consumed queue was deleted"
            case amqp_errors.AccessRefused() if "access to" in str(error):
                return f"permission denied ({error})"
            case amqp_errors.AccessRefused():
                return f"it refuses this user or password ({error})"
            case amqp_errors.NotAllowed():
                return f"it has no such virtual host for this user ({error})"
        return None

    def is_refusal(self, error: BaseException) -> bool:
        return isinstance(error, amqp_errors.AccessRefused | amqp_errors.NotAllowed)


KIND: Final = RabbitMQKind()
