"""Being told by a database that something is there, rather than asking again and again."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from typing import Any, Final

import sqlalchemy as sa

__all__ = ["listening"]

LOG: Final = logging.getLogger(__name__)

#: So often a thread looks whether it is to end, and so long it waits before it connects again.
_LOOK: Final = 0.25
_AGAIN: Final = 5.0


@contextlib.contextmanager
def listening(
    engine: sa.Engine, channel: str, payload: str, heard: Callable[[], None]
) -> Iterator[None]:
    """In the block, call `heard`, in a thread of its own, when PostgreSQL notifies the channel.

    With other databases and drivers nothing is called, and a notification may be missed: who waits
    for something looks for it now and then all the same.
    """
    if engine.driver != "psycopg":
        yield
        return
    ended = threading.Event()

    def listen() -> None:
        while not ended.is_set():
            try:
                with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:
                    connection.detach()  # the pool may have another one
                    driver: Any = connection.connection.dbapi_connection
                    driver.execute(f"LISTEN {channel}")
                    heard()  # of what was there before
                    while not ended.is_set():
                        for told in driver.notifies(timeout=_LOOK):
                            if told.payload == payload:
                                heard()
            except Exception as error:
                LOG.debug("Notifications of %s are not heard: %s", channel, error)
                ended.wait(_AGAIN)

    thread = threading.Thread(target=listen, name=f"wbengine-{channel}", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
