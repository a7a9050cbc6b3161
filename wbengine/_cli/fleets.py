"""The fleet of workers of an exchange, for commands."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._cli import errors

if TYPE_CHECKING:
    from wbengine._cli.config import Settings
    from wbengine._security.keys import Keyring
    from wbengine.fleet.client import Fleet, WorkerView

__all__ = ["check", "answering_workers", "keys", "create", "no_worker_error", "wait_seconds"]

#: Maximum wait in seconds for workers that may not exist. Existing workers answer at once.
_WORKER_WAIT_SECONDS: Final = 2.0
#: Maximum wait in seconds for the broker in commands that only read.
_MAX_BROKER_WAIT_SECONDS: Final = 8.0


def create(settings: Settings) -> Fleet:
    """Return the fleet that the settings select, without connecting to it.

    :raises Failed: if a setting is invalid.
    :raises TransportFailure: if the default folder cannot be used.
    """
    from wbengine.fleet import client as fleets

    with settings.failing("url", ValueError, TypeError, ImportError):
        return fleets.Fleet(
            exchange=settings.exchange,
            url=settings.url,
            transport=settings.transport,
            transport_options=settings.transport_options,
            timeout=min(settings.timeout, _MAX_BROKER_WAIT_SECONDS),
            keys=keys(settings),
        )


def keys(settings: Settings) -> Keyring | None:
    """Return the keys that the settings select.

    :raises Failed: if the keys cannot be used.
    """
    from wbengine._security import keys

    with settings.failing("keys", exceptions.InvalidFormat):
        return keys.keyring(settings.keys)


def check(settings: Settings, options: Mapping[str, Any]) -> None:
    """Check that the broker in the options of an engine or worker is reachable.

    Without this check the engine or worker would wait longer, and an engine would leave a stored
    flow that never ran.

    :raises TransportFailure: if the broker is not reachable within the timeout of the settings.
    :raises Failed: if the options are invalid.
    """
    from wbengine import transports
    from wbengine.engines.worker_based._connections import connecting

    names = ("exchange", "url", "transport", "transport_options")
    with settings.failing("url", ValueError, TypeError, ImportError):
        target = transports.resolve(**{name: options.get(name) for name in names})
        target.check()
    connecting.release(connecting.reach_soon(target, max(1.0, settings.timeout)))


def wait_seconds(settings: Settings) -> float:
    """Return the maximum wait for answers of workers in seconds."""
    return min(_WORKER_WAIT_SECONDS, settings.timeout)


def answering_workers(settings: Settings, fleet: Fleet) -> list[WorkerView]:
    """Return the workers that answer. Later queries of the fleet do not wait for more workers."""
    return fleet.workers(wait=wait_seconds(settings))


def no_worker_error(settings: Settings, fleet: Fleet) -> errors.Failed:
    """Return the error for an exchange on which no worker answers."""
    return errors.Failed(
        f"no worker answered on exchange {settings.exchange!r} of {fleet.target.shown}"
        " (to find the cause: wbengine doctor)",
        errors.UNAVAILABLE,
    )
