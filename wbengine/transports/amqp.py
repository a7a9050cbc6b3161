"""What kombu is told of a RabbitMQ: beats, timeouts, and how its certificate is checked."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from wbengine import _names, _options
from wbengine.transports import tls

#: Seconds between two heartbeats that are asked of the broker; after two silent ones the
#: connection is given up, by either side.  The transport option `heartbeat` says otherwise.
HEARTBEAT: Final = 10.0

#: What fits into the message that asks for them.
_LONGEST_HEARTBEAT: Final = 65535

_SECURE: Final = "amqps"
_NAMES: Final = ("amqp", _SECURE, "pyamqp")

#: What a URL may say after its `?`.
_QUERY: Final = ("heartbeat", *tls.NAMES, "ssl_server_hostname")
#: Transport options.  Those without `ssl` are py-amqp's.
_OPTIONS: Final = (
    *_QUERY,
    "ssl",
    *("client_properties", "login_method", "login_response", "authentication", "locale"),
    *("channel_max", "frame_max", "connect_timeout", "read_timeout", "write_timeout"),
    *("socket_settings", "confirm_publish"),
)


class Malformed(ValueError):
    """What is wrong with a URL or its options, in words that hold no secret."""


def is_meant(url: str | None, transport: Any) -> bool:
    """Whether a URL and the name of a transport, of which one may be missing, mean RabbitMQ."""
    name = transport if transport is not None else (url or "").partition("://")[0]
    return name in _NAMES


def alternates(url: str | None) -> tuple[str | None, ...]:
    """The brokers of one URL: it may name several, with `;` between them."""
    return tuple(url.split(";")) if url else (None,)


def arguments(
    url: str | None, transport: Any, options: Mapping[str, Any]
) -> tuple[str | None, dict[str, Any]]:
    """A URL without its query, and what else `kombu.Connection` is to be given.

    `amqps` (or an option `ssl`) means TLS: certificates are required, and have to be of the host
    that the URL names.  Only an explicit `cert_reqs` of none switches that off.

    :raises ValueError: the query of the URL, or an option, says what nobody understands.
    """
    left = dict(options)
    try:
        _options.check_known("a RabbitMQ", left, _OPTIONS)
    except ValueError as error:
        raise Malformed(str(error)) from None
    # TLS that was asked for in any way is TLS that is checked.
    secure = left.pop("ssl", None)
    named = secure.items() if isinstance(secure, Mapping) else ()
    told: dict[str, Any] = {f"ssl_{name}": value for name, value in named}
    told |= {name: left.pop(name) for name in options if name.startswith("ssl_")}
    told = {name: value for name, value in told.items() if value is not None}
    scheme, bare = transport, url
    if url is not None and "://" in url:
        bare, _, query = url.partition("?")
        scheme = transport or bare.partition("://")[0]
        for name, value in parse_qsl(query):
            if name not in _QUERY:
                raise Malformed(
                    f"the URL of a RabbitMQ says {name[:40]!r}{_names.hint(name, _QUERY)};"
                    f" it may say: {', '.join(_QUERY)}"
                )
            (left if name == "heartbeat" else told).setdefault(name, value)
    # An option of py-amqp's would be taken as it is, and win.
    heartbeat = _heartbeat(left.pop("heartbeat", HEARTBEAT))
    result: dict[str, Any] = {"heartbeat": heartbeat, "transport_options": left}
    if secure or told or scheme == _SECURE:
        result["ssl"] = _checked(told, bare)
    return bare, result


def _heartbeat(value: Any) -> float:
    try:
        seconds = float(value)
    except (TypeError, ValueError):
        seconds = -1.0
    if not 0 <= seconds <= _LONGEST_HEARTBEAT:
        raise Malformed(
            f"heartbeat is {value!r}: it must be seconds from 0 (none) to {_LONGEST_HEARTBEAT}"
        )
    return seconds


def _checked(told: Mapping[str, Any], url: str | None) -> dict[str, Any]:
    """Options of TLS as py-amqp calls them."""
    try:
        read = {name.removeprefix("ssl_"): tls.read(name, told[name]) for name in told}
    except ValueError as error:
        raise Malformed(str(error)) from None
    read["cert_reqs"] = ssl.VerifyMode[f"CERT_{read.get('cert_reqs', 'required')}".upper()]
    check_hostname = read.pop("check_hostname", True)
    if not check_hostname or read["cert_reqs"] == ssl.CERT_NONE:
        read.pop("server_hostname", None)  # no name is checked of what may be anybody
    elif not read.get("server_hostname"):
        read["server_hostname"] = (urlsplit(url).hostname if url else None) or "localhost"
    return read
