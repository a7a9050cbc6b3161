"""The thread that asks all workers of a broker what they know of some tasks."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from typing import Any, Final

import kombu
from amqp import exceptions as amqp_errors
from kombu import exceptions as kombu_errors
from kombu import pidbox

from wbengine import exceptions as exc
from wbengine.engines.worker_based.connections import connecting
from wbengine.interop.celery import brokers
from wbengine.interop.celery.worker import control, doubting

__all__ = ["Inquirer"]

LOG = logging.getLogger("wbengine.celery")

#: Celery's workers know it, too; theirs tell of what runs or waits, ours also of what ended.
_COMMAND: Final = "query_task"

#: Seconds without another answer after which there will be none.
_WAIT: Final = 1.0

#: Seconds between two attempts, and for which a connection stays that nobody needs.
_AWAY_PAUSE: Final = 1.0
_IDLE: Final = 15.0

#: What is raised when a broker went away.
_AWAY: Final = (
    exc.TransportFailure,
    OSError,
    kombu_errors.OperationalError,
    kombu_errors.ConnectionError,
    amqp_errors.ConnectionError,
    amqp_errors.ChannelError,
)


class Inquirer:
    """Ask by Celery's remote control, over a connection of its own; `answered` is called in its
    thread, once for each question.

    The thread begins with the first question.  While the broker is away a question waits.
    """

    def __init__(self, broker: brokers.Broker, answered: Callable[[doubting.Fates], None]) -> None:
        self._broker = broker.sending()
        self._answered = answered
        self._away = (*_AWAY, *broker.errors)
        self._stopping = threading.Event()
        self._changed = threading.Condition()
        self._ids: list[str] | None = None
        self._connection: kombu.Connection | None = None
        self._mailbox: Any = None
        self._thread: threading.Thread | None = None

    def ask(self, ids: Iterable[str]) -> None:
        """Ask about these; returns at once."""
        with self._changed:
            if self._stopping.is_set():
                return
            self._ids = list(ids)
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="wbengine-celery-inquirer", daemon=True
                )
                self._thread.start()

    def close(self, timeout: float = 2.0) -> None:
        """Ask nothing any more, and end.  Idempotent."""
        self._stopping.set()
        with self._changed:
            self._changed.notify_all()
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    # In its thread.

    def _run(self) -> None:
        while not self._stopping.is_set():
            with self._changed:
                self._changed.wait_for(self._is_wanted, _IDLE)
                ids, self._ids = self._ids, None
            if ids is None:
                self._reset()
                if not self._stopping.is_set():
                    with self._changed:
                        self._changed.wait_for(self._is_wanted)
                continue
            fates = self._find_out(ids)
            if fates is not None:
                try:
                    self._answered(fates)
                except Exception:  # the next question is to be asked all the same
                    LOG.exception("what other workers told cannot be used")
        self._reset()

    def _is_wanted(self) -> bool:
        return self._ids is not None or self._stopping.is_set()

    def _find_out(self, ids: list[str]) -> doubting.Fates | None:
        while not self._stopping.is_set():
            try:
                return _merged(self._query(ids))
            except self._away as error:
                LOG.debug("other workers cannot be asked now (%s)", error)
                self._reset()
                self._stopping.wait(_AWAY_PAUSE)
            except Exception as error:  # of a transport that has no remote control
                LOG.warning("other workers cannot be asked for tasks: %s", error)
                self._reset()
                return {}
        return None

    def _query(self, ids: list[str]) -> Any:
        if self._connection is None:
            self._connection = self._broker.reach(self._stopping, within=connecting.ATTEMPT)
            self._mailbox = pidbox.Mailbox(
                control.NAMESPACE, type="fanout", accept=["json"], serializer="json"
            )(self._connection)
        return self._mailbox.multi_call(_COMMAND, {"ids": ids}, timeout=_WAIT)

    def _reset(self) -> None:
        connection, self._connection, self._mailbox = self._connection, None, None
        if connection is not None:
            connecting.release(connection)


def _merged(replies: Any) -> dict[str, list[tuple[str, Any]]]:
    """What all told, by id; answers that say something else are left out."""
    found: dict[str, list[tuple[str, Any]]] = {}
    for reply in replies or ():
        for told in reply.values() if isinstance(reply, dict) else ():
            for name, what in told.items() if isinstance(told, dict) else ():
                if isinstance(what, list | tuple) and len(what) == 2:
                    found.setdefault(name, []).append((str(what[0]), what[1]))
    return found
