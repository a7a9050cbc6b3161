"""The store of flows, opened for a command."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wbengine import exceptions
from wbengine.cli import errors, output

if TYPE_CHECKING:
    from wbengine.cli.config import Settings
    from wbengine.persistence import base as persistence

__all__ = [
    "answered",
    "check_outlives",
    "fetched",
    "is_made",
    "is_of_this_process",
    "layout",
    "not_made",
    "opened",
]

_R = TypeVar("_R")

#: Seconds after which whoever sits here is told what is waited for.
_SILENCE: Final = 2.0

_DATABASES: Final = ("mysql", "mariadb", "postgresql", "postgres", "pgsql")


def opened(
    settings: Settings, *, upgrade: bool = False, missing_ok: bool = False, patient: bool = False
) -> persistence.Backend:
    """The store that `settings` name, with a layout that can be used.

    :param upgrade: bring an older layout up to date.
    :param missing_ok: there may be no store yet (`upgrade`: then make it), although one is named.
    :param patient: later keep on trying for a while, if it cannot be reached.
    :raises Failed: what is set makes no sense; there is no such store; it does not answer in time.
    :raises StorageFailure: it cannot be reached, or used.
    """
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(contextlib.closing(fetched(settings, patient=False)))
        made, current = answered(settings, lambda: _look(settings, backend))
        if not made and not missing_ok and settings.persistence:
            raise errors.Failed(not_made(settings), errors.UNAVAILABLE)
        if not current and (made or (upgrade and missing_ok)):
            with contextlib.closing(backend.get_connection()) as connection:
                if upgrade:
                    connection.upgrade()  # which may take its time
                else:
                    connection.validate()  # it says which layout there is
        if not (patient and is_database(settings)):
            stack.pop_all()
            return backend
    return fetched(settings)


def _look(settings: Settings, backend: persistence.Backend) -> tuple[bool, bool]:
    """Whether there is a store, and whether it has the current layout."""
    revision, wanted = (None, None) if is_of_this_process(settings) else layout(backend)
    if wanted is None:
        made = is_made(settings, backend)
        return made, made
    return revision is not None, revision == wanted


def layout(backend: Any) -> tuple[str | None, str | None]:
    """Which layout a store has, if it is made, and which one it should have, if layouts of its kind
    have numbers.
    """
    wanted = getattr(backend, "head", None)
    return (None, None) if wanted is None else (backend.revision(), wanted)


def is_made(settings: Settings, backend: persistence.Backend) -> bool:
    """Whether there is a store, rather than a place where one can be made.

    :raises StorageFailure: it cannot be reached.
    """
    if is_of_this_process(settings):
        return True
    revision, wanted = layout(backend)
    if wanted is not None:
        return revision is not None
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.validate()
        except exceptions.StorageFailure:
            return False
    return True


def not_made(settings: Settings) -> str:
    """What to say where nothing was ever kept: the place may be misspelt."""
    return f"there is no store at {settings.store} yet: `wbengine db upgrade` makes it"


def fetched(settings: Settings, *, patient: bool = True) -> persistence.Backend:
    """The store that `settings` name, as it is.

    :param patient: keep on trying for a while what cannot be reached.
    :raises Failed: what is set makes no sense.
    """
    from wbengine.persistence import backends

    options: dict[str, Any] = {"max_retries": 1} if not patient and is_database(settings) else {}
    with settings.failing("persistence", exceptions.NotFound, ValueError, ImportError, TypeError):
        return backends.fetch(settings.store, **options)


def answered(settings: Settings, ask: Callable[[], _R]) -> _R:
    """What `ask` returns, or raises, if it does so in time.  Whoever sits here is told what is
    waited for, if that takes a while.

    :raises Failed: it does not.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((True, ask()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=call, name="wbengine-asking", daemon=True).start()
    until = time.monotonic() + settings.timeout
    try:
        good, found = answers.get(timeout=min(_SILENCE, settings.timeout))
    except queue.Empty:
        # Others have no reason to be silent, but that this host is busy.
        if settings.timeout > _SILENCE and is_database(settings) and not settings.quiet:
            from wbengine.views import redaction

            output.say(f"waiting for the store: {redaction.Redactor().text(settings.store)}")
        try:
            good, found = answers.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            raise errors.Failed(
                f"the store does not answer within {settings.timeout:g} s", errors.UNAVAILABLE
            ) from None
    if not good:
        raise found
    return found  # type: ignore[no-any-return]


def check_outlives(settings: Settings, why: str = "") -> None:
    """
    :raises Failed: the store ends with this process; `why` tells more of what that means.
    """
    if is_of_this_process(settings):
        raise errors.Failed(f"the store {settings.store} ends with this process{why}", errors.USAGE)


def is_of_this_process(settings: Settings) -> bool:
    """Whether the store ends with this process."""
    kind, _, rest = settings.store.partition(":")
    return kind == "memory" or (kind.startswith("sqlite") and not os.path.basename(rest.strip("/")))


def is_database(settings: Settings) -> bool:
    """Whether the store is in a server."""
    return settings.store.partition(":")[0].partition("+")[0] in _DATABASES
