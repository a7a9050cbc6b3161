"""Options of kombu for RabbitMQ: heartbeats, timeouts and the check of its certificate."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from wbengine import _names, _options
from wbengine.transports import tls

#: Default of the transport option `heartbeat`. Both sides close the connection after two missing
#: heartbeats.
HEARTBEAT_SECONDS: Final = 10.0

#: Maximum that fits into AMQP's tune method.
_MAX_HEARTBEAT_SECONDS: Final = 65535

_SECURE: Final = "amqps"
_NAMES: Final = ("amqp", _SECURE, "pyamqp")

_URL_OPTIONS: Final = ("heartbeat", *tls.NAMES, "ssl_server_hostname")
#: Those without `ssl` are py-amqp's.
_OPTIONS: Final = (
    *_URL_OPTIONS,
    "ssl",
    *("client_properties", "login_method", "login_response", "authentication", "locale"),
    *("channel_max", "frame_max", "connect_timeout", "read_timeout", "write_timeout"),
    *("socket_settings", "confirm_publish"),
)


class InvalidURLError(ValueError):
    """A URL or its options are invalid. The message contains no secret."""


def is_rabbitmq(url: str | None, transport: Any) -> bool:
    """Return whether a URL and a transport, of which one may be None, refer to RabbitMQ."""
    name = transport if transport is not None else (url or "").partition("://")[0]
    return name in _NAMES


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
    try:
        _options.check_known("a RabbitMQ", remaining, _OPTIONS)
    except ValueError as error:
        raise InvalidURLError(str(error)) from None
    # The check applies to all ways in which TLS is enabled.
    secure = remaining.pop("ssl", None)
    named = secure.items() if isinstance(secure, Mapping) else ()
    tls_options: dict[str, Any] = {f"ssl_{name}": value for name, value in named}
    tls_options |= {name: remaining.pop(name) for name in options if name.startswith("ssl_")}
    tls_options = {name: value for name, value in tls_options.items() if value is not None}
    scheme, bare = transport, url
    if url is not None and "://" in url:
        bare, _, query = url.partition("?")
        scheme = transport or bare.partition("://")[0]
        for name, value in parse_qsl(query):
            if name not in _URL_OPTIONS:
                raise InvalidURLError(
                    f"The options of a RabbitMQ URL must be among {', '.join(_URL_OPTIONS)}, got"
                    f" {name[:40]!r}{_names.hint(name, _URL_OPTIONS)}"
                )
            (remaining if name == "heartbeat" else tls_options).setdefault(name, value)
    # py-amqp's own option `heartbeat` would have precedence over the argument.
    heartbeat = _heartbeat(remaining.pop("heartbeat", HEARTBEAT_SECONDS))
    result: dict[str, Any] = {"heartbeat": heartbeat, "transport_options": remaining}
    if secure or tls_options or scheme == _SECURE:
        result["ssl"] = _tls_arguments(tls_options, bare)
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
        read = {name.removeprefix("ssl_"): tls.read(name, options[name]) for name in options}
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
