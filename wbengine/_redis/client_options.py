"""Options of clients of Redis, which the transport, ledgers, limits and job boards share.

A new option is a field of `ClientOptions`, and a case of `read_option` if its value is converted.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from wbengine._configuration import named_options, tls_options

__all__ = ["NAMES", "TIMEOUTS", "ClientOptions", "arguments", "read_option"]


@dataclass(frozen=True)
class ClientOptions(tls_options.TLSOptions):
    """Options with the names of redis-py. Those with `ssl_` require TLS."""

    socket_timeout: float = named_options.option(5.0, "Seconds to wait for a reply.")
    socket_connect_timeout: float = named_options.option(5.0, "Seconds to wait for a connection.")
    client_name: str | None = named_options.option(
        None, "Name of the connections in ``CLIENT LIST``."
    )
    ssl_ca_path: str | None = named_options.option(None, "As in redis-py.")
    ssl_ca_data: str | None = named_options.option(None, "As in redis-py.")
    ssl_password: str | None = named_options.option(None, "As in redis-py.")
    ssl_min_version: object = named_options.option(
        None, "Lowest version of TLS: ``TLSv1_2`` or ``TLSv1_3``."
    )


NAMES: Final = named_options.option_names(ClientOptions)
#: Options that are durations.
TIMEOUTS: Final = ("socket_timeout", "socket_connect_timeout")
_DEFAULTS: Final = {each.name: each.default for each in dataclasses.fields(ClientOptions)}


def read_option(name: str, value: Any) -> Any:
    """Convert the value of an option from text.

    :raises ValueError: if the value is invalid.
    """
    if name in TIMEOUTS:
        return _seconds(name, value)
    if name == "client_name":
        return _client_name(name, value)
    return tls_options.read(name, value)


def arguments(given: Mapping[str, Any], is_secure: bool) -> dict[str, Any]:
    """Return the arguments for a client of redis-py: the given options and the defaults of others.

    :param given: options by name. Those that are None and those of other names are ignored.
    :param is_secure: whether the connection uses TLS.
    :raises ValueError: if a value is invalid, or an option of TLS is given without TLS.
    """
    chosen = {name: given[name] for name in NAMES if given.get(name) is not None}
    for name in chosen:
        if name.startswith("ssl_") and not is_secure:
            raise ValueError(f"{name!r} requires rediss://, got redis://")
    return {
        name: read_option(name, value)
        for name, value in {**_DEFAULTS, **chosen}.items()
        if value is not None and (is_secure or not name.startswith("ssl_"))
    }


def _seconds(name: str, value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        number = 0.0
    if not 0 < number < 3600:
        raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
    return number


def _client_name(name: str, value: Any) -> str:
    text = named_options.text(name, value)
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError(f"{name} must be ASCII characters without spaces, got {value!r:.80}")
    return text
