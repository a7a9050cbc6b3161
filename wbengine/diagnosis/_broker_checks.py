"""Checks of the broker: its connection, and those of its transport."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Final

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.diagnosis.findings import Finding, Place, bad, good, line
from wbengine.engines.worker_based._connections import connecting
from wbengine.fleet import client as fleets
from wbengine.transports import Target, _kinds
from wbengine.transports._kinds import TransportKind

__all__ = [
    "LOGIN_FIX", "check", "check_connection", "fleet", "has_worker_role", "is_login_refused",
]  # fmt: skip

#: Maximum time to connect in seconds, even if the timeout of the settings is longer.
_MAX_CONNECT_SECONDS: Final = 5.0

LOGIN_FIX: Final = "correct user and password in the URL of the broker (--url, $WBENGINE_URL)"


def check_connection(place: Place) -> Iterator[Finding]:
    """Check whether the broker is reachable."""
    try:
        target = place.target
        target.check()
    except (ValueError, TypeError, ImportError) as error:
        yield bad("broker", line(error), "correct the URL or the options of the broker:"
                  " --url, $WBENGINE_URL, or `url` in wbengine.toml")  # fmt: skip
        return
    except exceptions.TransportFailure as error:
        yield _unreachable_finding(_kinds.kind_of(*place.address), None, line(error))
        return
    began = time.monotonic()
    try:
        connection = fleet(place).connect()
    except exceptions.TransportFailure as error:
        yield _unreachable_finding(target.kind, target, line(error))
        return
    connecting.release(connection)
    yield good(
        "broker", f"connected to {target.shown} in {(time.monotonic() - began) * 1000:.0f} ms"
    )


def fleet(place: Place) -> fleets.Fleet:
    """Return the fleet of workers of the exchange, not connected."""
    return fleets.Fleet(
        timeout=min(place.timeout, _MAX_CONNECT_SECONDS), keys=place.keys, **place.engine_options
    )


def check(place: Place) -> Iterator[Finding]:
    """Check the permissions and settings of a reachable broker."""
    if place.target.kind.diagnosis is not None:
        yield from object_names.load(place.target.kind.diagnosis).check(place)


def has_worker_role(place: Place) -> bool:
    """Return whether the user of the broker has only the rights of workers; see `db create`."""
    kind = place.target.kind if place.is_known else None
    if kind is None or kind.name != "postgresql":
        return False
    assert kind.diagnosis is not None
    return bool(object_names.load(kind.diagnosis).has_worker_role(place))


def is_login_refused(reason: str) -> bool:
    """Return whether a broker was unreachable because of the user or password."""
    return any(
        words in reason for words in ("refuses this user or password", "NOAUTH", "WRONGPASS")
    )


def _unreachable_finding(kind: TransportKind, target: Target | None, reason: str) -> Finding:
    fix: str | None = None
    if kind.diagnosis is not None:
        fix = object_names.load(kind.diagnosis).fix(reason, target)
    if fix is not None:
        return bad("broker", reason, fix)
    if is_login_refused(reason):
        fix = LOGIN_FIX
    elif "name cannot be resolved" in reason:
        fix = "correct the host name in the URL of the broker, or the DNS settings of this host"
    elif "certificate" in reason or "TLS" in reason:
        fix = (
            "add the certificate authority of the broker to the URL: ?ssl_ca_certs=/path/of/ca.pem"
        )
    else:
        fix = "start the broker, or correct host and port in its URL (--url, $WBENGINE_URL)"
    return bad("broker", reason, fix)
