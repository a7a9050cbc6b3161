"""The store of flows, opened for a command."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wbengine import exceptions
from wbengine.cli import errors

if TYPE_CHECKING:
    from wbengine.cli.config import Settings
    from wbengine.persistence import base as persistence

__all__ = ["answered", "fetched", "is_of_this_process", "look", "opened"]

_R = TypeVar("_R")

_DATABASES: Final = ("mysql", "mariadb", "postgresql", "postgres", "pgsql")


def opened(settings: Settings, *, make: bool = False, patient: bool = False) -> persistence.Backend:
    """The store that `settings` name, with a layout that can be used.

    :param make: make its layout where there is none, or bring an older one up to date.
    :param patient: later keep on trying for a while, if it cannot be reached.
    :raises Failed: what is set makes no sense; it does not answer in time.
    :raises StorageFailure: it cannot be reached, or used.
    """
    with contextlib.closing(fetched(settings, patient=False)) as looked_at:
        look(settings, looked_at, make=make)
    return fetched(settings, patient=patient)


def look(settings: Settings, backend: persistence.Backend, *, make: bool = False) -> None:
    """See that a store answers, and has a layout that can be used.

    :raises Exception: as `opened`.
    """
    answered(settings, lambda: _look(backend, make))


def _look(backend: persistence.Backend, make: bool) -> None:
    with contextlib.closing(backend.get_connection()) as connection:
        if make:
            connection.upgrade()
        else:  # `validate` would refuse one that nobody has written to yet
            next(connection.get_logbooks(lazy=True), None)


def fetched(settings: Settings, *, patient: bool = True) -> persistence.Backend:
    """The store that `settings` name, as it is.

    :param patient: keep on trying for a while what cannot be reached.
    :raises Failed: what is set makes no sense.
    """
    from wbengine.persistence import backends

    options: dict[str, Any] = {}
    kind = settings.store.partition(":")[0].partition("+")[0]
    if not patient and kind in _DATABASES:
        options["max_retries"] = 1
    try:
        return backends.fetch(settings.store, **options)
    except (exceptions.NotFound, ValueError, ImportError, TypeError) as error:
        raise settings.failed("persistence", errors.line_of(error)) from error


def answered(settings: Settings, ask: Callable[[], _R], what: str = "the store") -> _R:
    """What `ask` returns, or raises, if it does so in time.

    :raises Failed: it does not.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((True, ask()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=call, name="wbengine-asking", daemon=True).start()
    try:
        good, found = answers.get(timeout=settings.timeout)
    except queue.Empty:
        raise errors.Failed(
            f"{what} does not answer within {settings.timeout:g} s", errors.UNAVAILABLE
        ) from None
    if not good:
        raise found
    return found  # type: ignore[no-any-return]


def is_of_this_process(settings: Settings) -> bool:
    """Whether the store ends with this process."""
    kind, _, rest = settings.store.partition(":")
    return kind == "memory" or (kind.startswith("sqlite") and not os.path.basename(rest.strip("/")))
