"""The base classes of listeners."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final, Self

from wbengine import states
from wbengine._introspection import object_names
from wbengine.types import failure as ft
from wbengine.types import notifier as nt

__all__ = ["DEFAULT_LISTEN_FOR", "FINISH_STATES", "DumpingListener", "Listener"]

LOG: Final = logging.getLogger(__name__)

#: States that an atom enters with a result or a failure.
FINISH_STATES: Final = (states.FAILURE, states.SUCCESS, states.REVERTED, states.REVERT_FAILURE)

#: States that a listener receives by default: all.
DEFAULT_LISTEN_FOR: Final = (nt.Notifier.ANY,)

Details = dict[str, Any]
Registration = tuple[nt.Notifier, str, Callable[..., Any], nt.DetailsFilter | None]


def _is_task(details: Details) -> bool:
    return "task_name" in details


def _is_retry(details: Details) -> bool:
    return "retry_name" in details


_FILTERS: Final[dict[str, nt.DetailsFilter | None]] = {
    "task": _is_task,
    "retry": _is_retry,
    "flow": None,
}


class Listener:
    """Receives the state changes of an engine's flow and atoms while it is registered.

    Subclasses override `_flow_receiver`, `_task_receiver` or `_retry_receiver`, or `_receive`,
    which all three call. Only overridden receivers are registered. `with Listener(engine):
    engine.run()` registers and deregisters.

    Receivers are called in the thread of the engine, in the order of the events, after the events
    are stored. Their exceptions are logged, and do not affect the flow.
    """

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
    ) -> None:
        """Create a listener for `engine`. Call `register` to activate it.

        :param task_listen_for: states of tasks to receive; empty: none.
        :raises TypeError: if `engine` is not an engine, or states are not strings.
        """
        if not hasattr(engine, "atom_notifier"):
            raise TypeError(f"engine must be an engine, got {engine!r}")
        self._engine = engine
        self._listen_for: dict[str, tuple[str, ...]] = {
            "task": object_names.as_tuple("task_listen_for", task_listen_for),
            "retry": object_names.as_tuple("retry_listen_for", retry_listen_for),
            "flow": object_names.as_tuple("flow_listen_for", flow_listen_for),
        }
        self._registered: list[Registration] = []

    def _flow_receiver(self, state: str, details: Details) -> None:
        """Handle the new `state` of the flow.

        `details`: engine, flow_name, flow_uuid, old_state.
        """
        self._receive("flow", state, details)

    def _task_receiver(self, state: str, details: Details) -> None:
        """Handle the new `state` of a task.

        `details`: task_name, task_uuid, old_state; attempt (number of the latest execution or
        reversion, 0 before the first); executions, reversions (their numbers); at the end also
        result, worker, submitted, started, ended, runtime (see `models.Attempt`).
        """
        self._receive("task", state, details)

    def _retry_receiver(self, state: str, details: Details) -> None:
        """Handle the new `state` of a retry.

        `details`: as for tasks, with retry_name and retry_uuid.
        """
        self._receive("retry", state, details)

    def _receive(self, kind: str, state: str, details: Details) -> None:
        """Handle the new `state` of a 'flow', 'task' or 'retry' (`kind`)."""

    def register(self) -> None:
        """Register the receivers. Idempotent.

        :raises ValueError: if a state does not exist; then nothing is registered.
        """
        if self._registered:
            return
        engine = self._engine
        receives_all = type(self)._receive is not Listener._receive
        try:
            for kind, details_filter in _FILTERS.items():
                receiver = getattr(self, f"_{kind}_receiver")
                function = getattr(receiver, "__func__", None)
                if function is getattr(Listener, receiver.__name__) and not receives_all:
                    continue
                notifier = engine.notifier if kind == "flow" else engine.atom_notifier
                for state in dict.fromkeys(self._listen_for[kind]):
                    notifier.register(state, receiver, details_filter=details_filter)
                    self._registered.append((notifier, state, receiver, details_filter))
        except ValueError:
            Listener.deregister(self)
            raise

    def deregister(self) -> None:
        """Deregister the receivers. Idempotent."""
        while self._registered:
            notifier, state, receiver, details_filter = self._registered.pop()
            notifier.deregister(state, receiver, details_filter=details_filter)

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(self, type: object, value: object, tb: object) -> None:
        try:
            self.deregister()
        except Exception:
            # Raising would hide an exception of the flow.
            LOG.warning("cannot deregister a listener from %s", self._engine, exc_info=True)


class DumpingListener(Listener, metaclass=abc.ABCMeta):
    @abc.abstractmethod
    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Write `message % args`, and the exception `exc_info` if it is not None."""

    def _receive(self, kind: str, state: str, details: Details) -> None:
        args = details[f"{kind}_name"], details[f"{kind}_uuid"], state, details["old_state"]
        message = f"%s has moved {kind} '%s' (%s) into state '%s' from state '%s'"
        if kind == "flow" or state not in FINISH_STATES:
            self._dump(message, self._engine, *args)
            return
        result = details.get("result")
        failed = isinstance(result, ft.Failure)
        self._dump(
            f"{message} with result '%s' (failure=%s)",
            self._engine,
            *args,
            result,
            failed,
            exc_info=result.exc_info if isinstance(result, ft.Failure) else None,
        )
