"""Ends a command whose store goes silent while it is read: nothing else would."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING

from wbengine import exceptions
from wbengine.cli import errors, stores

if TYPE_CHECKING:
    from wbengine.cli.context import Context

__all__ = ["minded"]


@contextlib.contextmanager
def minded(context: Context) -> Iterator[None]:
    """While this goes on, somebody else asks the store now and then.  Where that gets no answer in
    time, whoever waits for one gets none either: the process ends, with a line and 69.

    A command that takes long, of a store that answers, goes on.
    """
    if stores.is_of_this_process(context.settings):
        yield
        return
    done = threading.Event()
    threading.Thread(
        target=_mind, args=(context, done), name="wbengine-minding", daemon=True
    ).start()
    try:
        yield
    finally:
        done.set()


def _mind(context: Context, done: threading.Event) -> None:
    while not done.wait(context.settings.timeout / 2):
        try:
            with contextlib.closing(stores.fetched(context.settings, patient=False)) as backend:
                stores.look(context.settings, backend)
        except errors.Failed as error:
            if not done.is_set():
                _end(context, error)
        except exceptions.WbengineException:
            pass  # that is an answer, and the command gets it too


def _end(context: Context, error: errors.Failed) -> None:
    # The main thread cannot be woken from within a driver.
    sys.stderr.write(context.masker.text(f"{context.path}: error: {errors.line_of(error)}\n"))
    sys.stderr.flush()
    os._exit(errors.code_of(error))
