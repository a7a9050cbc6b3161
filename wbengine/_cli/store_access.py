"""Access of commands to the store of flows."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from wbengine import exceptions
from wbengine._cli import errors, output

if TYPE_CHECKING:
    from wbengine._cli.config import Settings
    from wbengine.persistence import base as persistence
    from wbengine.persistence.backends._sql.schema_revisions import Layout

__all__ = [
    "call_in_time",
    "check_outlives",
    "fetch",
    "store_exists",
    "is_in_process",
    "layout",
    "missing_message",
    "open_store",
]

_R = TypeVar("_R")

#: Seconds after which a message reports that the command waits for the store.
_SILENT_SECONDS: Final = 2.0

_DATABASES: Final = ("mysql", "mariadb", "postgresql", "postgres", "pgsql")


def open_store(
    settings: Settings, *, upgrade: bool = False, missing_ok: bool = False, patient: bool = False
) -> persistence.Backend:
    """Return the store that the settings select, with a usable layout.

    :param missing_ok: accept a configured store that does not exist; with `upgrade`, create it.
    :param patient: let later calls retry for a while if the store is not reachable.
    :raises Failed: if the setting is invalid, the store does not exist or does not answer in time.
    :raises StorageFailure: if the store cannot be reached or used.
    """
    with contextlib.ExitStack() as stack:
        backend = stack.enter_context(contextlib.closing(fetch(settings, patient=False)))
        exists, usable = call_in_time(settings, lambda: _inspect(settings, backend))
        if not exists and not missing_ok and settings.persistence:
            raise errors.Failed(missing_message(settings), errors.UNAVAILABLE)
        if not usable and (exists or (upgrade and missing_ok)):
            with contextlib.closing(backend.get_connection()) as connection:
                if upgrade:
                    connection.upgrade()  # without a time limit
                else:
                    connection.validate()  # raises an error that names the layout
        if not (patient and is_database(settings)):
            stack.pop_all()
            return backend
    return fetch(settings)


def _inspect(settings: Settings, backend: persistence.Backend) -> tuple[bool, bool]:
    """Return whether the store exists, and whether its layout is usable."""
    stored, required = (None, None) if is_in_process(settings) else layout(backend)
    if required is None:
        exists = store_exists(settings, backend)
        return exists, exists
    return stored is not None, stored is not None and stored.is_usable


def layout(backend: Any) -> tuple[Layout | None, str | None]:
    """Return the layout of the store and the newest revision that this version knows.

    The first is None if the store does not exist. Both are None if this kind of store has no
    revisions.
    """
    required = getattr(backend, "head", None)
    return (None, None) if required is None else (backend.stored_layout(), required)


def store_exists(settings: Settings, backend: persistence.Backend) -> bool:
    """Return whether the store exists, as opposed to a place where it can be created.

    :raises StorageFailure: if the store is not reachable.
    """
    if is_in_process(settings):
        return True
    stored, required = layout(backend)
    if required is not None:
        return stored is not None
    with contextlib.closing(backend.get_connection()) as connection:
        try:
            connection.validate()
        except exceptions.StorageFailure:
            return False
    return True


def missing_message(settings: Settings) -> str:
    """Return the message for a store that does not exist, perhaps because its URL is misspelled."""
    return f"no store exists at {settings.store}; create it with `wbengine db upgrade`"


def fetch(settings: Settings, *, patient: bool = True) -> persistence.Backend:
    """Return the store that the settings select, without checking its layout.

    :param patient: retry for a while if the store is not reachable.
    :raises Failed: if the setting is invalid.
    """
    from wbengine.persistence import backends

    options: dict[str, Any] = {"max_retries": 1} if not patient and is_database(settings) else {}
    with settings.failing("persistence", exceptions.NotFound, ValueError, ImportError, TypeError):
        return backends.fetch(settings.store, **options)


def call_in_time(settings: Settings, ask: Callable[[], _R]) -> _R:
    """Call `ask` in another thread and return its result, or raise its error.

    If the call is slow, a message reports that the command waits for the store.

    :raises Failed: if the call does not return within the timeout of the settings.
    """
    answers: queue.SimpleQueue[tuple[bool, Any]] = queue.SimpleQueue()

    def call() -> None:
        try:
            answers.put((True, ask()))
        except BaseException as error:
            answers.put((False, error))

    threading.Thread(target=call, name="wbengine-asking", daemon=True).start()
    deadline = time.monotonic() + settings.timeout
    try:
        succeeded, result = answers.get(timeout=min(_SILENT_SECONDS, settings.timeout))
    except queue.Empty:
        # Not for other kinds of stores: they are slow only if this host is busy.
        if settings.timeout > _SILENT_SECONDS and is_database(settings) and not settings.quiet:
            from wbengine.views import redaction

            output.say(f"waiting for the store {redaction.Redactor().text(settings.store)}")
        try:
            succeeded, result = answers.get(timeout=max(0.0, deadline - time.monotonic()))
        except queue.Empty:
            raise errors.Failed(
                f"the store did not answer within {settings.timeout:g} s", errors.UNAVAILABLE
            ) from None
    if not succeeded:
        raise result
    return result  # type: ignore[no-any-return]


def check_outlives(settings: Settings, why: str = "") -> None:
    """Check that the store outlives this process.

    :param why: end of the error message.
    :raises Failed: if the store exists only in this process.
    """
    if is_in_process(settings):
        raise errors.Failed(
            f"the store must outlive this process, got {settings.store}{why}", errors.USAGE
        )


def is_in_process(settings: Settings) -> bool:
    """Return whether the store exists only in this process."""
    kind, _, rest = settings.store.partition(":")
    return kind == "memory" or (kind.startswith("sqlite") and not os.path.basename(rest.strip("/")))


def is_database(settings: Settings) -> bool:
    """Return whether the store is a database server."""
    return settings.store.partition(":")[0].partition("+")[0] in _DATABASES
