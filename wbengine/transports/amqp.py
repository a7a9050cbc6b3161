"""What kombu is told of a RabbitMQ: beats, timeouts, and how its certificate is checked."""

from __future__ import annotations

import ssl
from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import parse_qsl, urlsplit

from wbengine import _names

#: Seconds between two heartbeats that are asked of the broker; after two silent ones the
#: connection is given up, by either side.  The transport option `heartbeat` says otherwise.
HEARTBEAT: Final = 10.0

#: What fits into the message that asks for them.
_LONGEST_HEARTBEAT: Final = 65535

_SECURE: Final = "amqps"
_NAMES: Final = ("amqp", _SECURE, "pyamqp")

#: What a URL may say after its `?`, and what TLS it means.
_QUERY: Final[Mapping[str, str]] = {
    "ssl_ca_certs": "ca_certs",
    "ssl_certfile": "certfile",
    "ssl_keyfile": "keyfile",
    "ssl_cert_reqs": "cert_reqs",
    "ssl_server_hostname": "server_hostname",
}
_REQUIREMENTS: Final[Mapping[str, ssl.VerifyMode]] = {
    "none": ssl.CERT_NONE,
    "optional": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


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
    # TLS that was asked for in any way is TLS that is checked.
    secure = left.pop("ssl", None)
    tls = dict(secure) if isinstance(secure, Mapping) else {}
    scheme, bare = transport, url
    if url is not None and "://" in url:
        bare, _, query = url.partition("?")
        scheme = transport or bare.partition("://")[0]
        for name, value in parse_qsl(query):
            if name == "heartbeat":
                left.setdefault(name, value)
            elif name in _QUERY:
                tls.setdefault(_QUERY[name], value)
            else:
                known = ("heartbeat", *_QUERY)
                raise Malformed(
                    f"the URL of a RabbitMQ says {name[:40]!r}{_names.hint(name, known)};"
                    f" it may say: {', '.join(known)}"
                )
    # An option of py-amqp's would be taken as it is, and win.
    heartbeat = _heartbeat(left.pop("heartbeat", HEARTBEAT))
    result: dict[str, Any] = {"heartbeat": heartbeat, "transport_options": left}
    if secure or tls or scheme == _SECURE:
        result["ssl"] = _checked(tls, bare)
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


def _checked(tls: dict[str, Any], url: str | None) -> dict[str, Any]:
    needed = tls.get("cert_reqs", ssl.CERT_REQUIRED)
    if isinstance(needed, str):
        needed = _REQUIREMENTS.get(needed.lower().removeprefix("cert_"), ssl.CERT_REQUIRED)
    tls["cert_reqs"] = needed
    if needed == ssl.CERT_NONE:
        tls.pop("server_hostname", None)  # no name is checked of what may be anybody
    elif not tls.get("server_hostname"):
        tls["server_hostname"] = (urlsplit(url).hostname if url else None) or "localhost"
    return tls
