"""The fleet of an exchange, for a command."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine.cli import errors

if TYPE_CHECKING:
    from wbengine.cli.config import Settings
    from wbengine.keys import Keyring
    from wbengine.views.fleet import Fleet, WorkerView

__all__ = ["check", "heard", "keys", "made", "nobody", "wait"]

#: Seconds to wait for a worker where one is not there: those that are answer at once.
_WAIT: Final = 2.0
#: Seconds to wait for a broker, whatever is set: a command that only looks ends soon.
_LONGEST: Final = 8.0


def made(settings: Settings) -> Fleet:
    """The fleet that `settings` name, not opened.

    :raises Failed: what is set makes no sense.
    :raises TransportFailure: the default folder cannot be used.
    """
    from wbengine.views import fleet

    with settings.failing("url", ValueError, TypeError, ImportError):
        return fleet.Fleet(
            exchange=settings.exchange,
            url=settings.url,
            transport=settings.transport,
            transport_options=settings.transport_options,
            timeout=min(settings.timeout, _LONGEST),
            keys=keys(settings),
        )


def keys(settings: Settings) -> Keyring | None:
    """The keys that `settings` name.

    :raises Failed: they cannot be used.
    """
    from wbengine import exceptions, keys

    with settings.failing("keys", exceptions.InvalidFormat):
        return keys.keyring(settings.keys)


def check(settings: Settings, options: Mapping[str, Any]) -> None:
    """Reach the broker that the `options` of an engine or worker mean, and let go of it: they would
    wait longer, and an engine would leave a flow behind that never ran.

    :raises TransportFailure: it cannot be reached in time.
    :raises Failed: it cannot be there.
    """
    from wbengine import transports
    from wbengine.engines.worker_based.connections import connecting

    known = ("exchange", "url", "transport", "transport_options")
    with settings.failing("url", ValueError, TypeError, ImportError):
        target = transports.resolve(**{name: options.get(name) for name in known})
        target.check()
    connecting.release(connecting.reach_soon(target, max(1.0, settings.timeout)))


def wait(settings: Settings) -> float:
    """Seconds to wait for workers to answer."""
    return min(_WAIT, settings.timeout)


def heard(settings: Settings, fleet: Fleet) -> list[WorkerView]:
    """The workers that answer; nothing that is asked of the fleet afterwards waits for others."""
    return fleet.workers(wait=wait(settings))


def nobody(settings: Settings, fleet: Fleet) -> errors.Failed:
    """What to raise where no worker answers."""
    return errors.Failed(
        f"no worker answers on exchange {settings.exchange!r} of {fleet.target.shown}"
        " ('wbengine doctor' finds out why)",
        errors.UNAVAILABLE,
    )
