"""The fleet of an exchange, opened for a command."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wbengine.cli import errors

if TYPE_CHECKING:
    from wbengine.cli.config import Settings
    from wbengine.views.fleet import Fleet

__all__ = ["WAIT", "made", "nobody", "opened", "wait"]

#: Seconds to wait for a worker where one is not there: those that are answer at once.
WAIT = 2.0


def made(settings: Settings) -> Fleet:
    """The fleet that `settings` name, not opened.

    :raises Failed: what is set makes no sense.
    :raises TransportFailure: the default folder cannot be used.
    """
    from wbengine.views import fleet

    try:
        return fleet.Fleet(
            settings.exchange,
            url=settings.url,
            transport=settings.transport,
            transport_options=settings.transport_options,
            timeout=min(settings.timeout, 8.0),
        )
    except (ValueError, TypeError, ImportError) as error:
        raise settings.failed("url", errors.line_of(error)) from error


@contextlib.contextmanager
def opened(settings: Settings) -> Iterator[Fleet]:
    """The fleet that `settings` name.

    :raises Failed: what is set makes no sense.
    :raises TransportFailure: the broker cannot be reached, or used.
    """
    with made(settings) as fleet:
        yield fleet


def wait(settings: Settings) -> float:
    """Seconds to wait for workers to answer."""
    return min(WAIT, settings.timeout)


def nobody(settings: Settings, fleet: Fleet) -> errors.Failed:
    """What to raise where no worker answers."""
    return errors.Failed(
        f"no worker answers on exchange {settings.exchange!r} of {fleet.target.shown}"
        " ('wbengine doctor' finds out why)",
        errors.UNAVAILABLE,
    )
