"""What all listeners share: when they listen, and to whom."""

from __future__ import annotations

import abc
import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Final

from wbengine import _names, states
from wbengine.types import failure as ft
from wbengine.types import notifier as nt

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["DEFAULT_LISTEN_FOR", "FINISH_STATES", "DumpingListener", "Listener"]

LOG: Final = logging.getLogger(__name__)

#: The states that an atom enters with a result (or a failure).
FINISH_STATES: Final = (states.FAILURE, states.SUCCESS, states.REVERTED, states.REVERT_FAILURE)

#: Which states a listener wants to hear of, unless it is told otherwise: all.
DEFAULT_LISTEN_FOR: Final = (nt.Notifier.ANY,)

Details = dict[str, Any]
Registration = tuple[nt.Notifier, str, Callable[..., Any], nt.DetailsFilter | None]


def _is_task(details: Details) -> bool:
    return "task_name" in details


def _is_retry(details: Details) -> bool:
    return "retry_name" in details


#: What tells the news of a kind from others of the same notifier.
_FILTERS: Final[dict[str, nt.DetailsFilter | None]] = {
    "task": _is_task,
    "retry": _is_retry,
    "flow": None,
}


class Listener:
    """Hears of the changes of state of an engine's flow and atoms, while it is registered.

    Derive from it and override `_flow_receiver`, `_task_receiver` or `_retry_receiver`, or
    `_receive`, which is told by all of them; those that stay as they are cost nothing.
    `with Listener(engine): engine.run()` registers and deregisters.

    Receivers are called in the engine's thread, after what they are told is stored, in the order it
    happened.  What they raise is logged, and changes nothing for the flow.
    """

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = DEFAULT_LISTEN_FOR,
    ) -> None:
        """
        :param task_listen_for: the states of tasks to hear of; none of them if empty.
        :raises TypeError: `engine` is none, or states are no strings.
        """
        if not hasattr(engine, "atom_notifier"):
            raise TypeError(f"A listener needs an engine to listen to, not {engine!r}")
        self._engine = engine
        self._listen_for: dict[str, tuple[str, ...]] = {
            "task": _names.words("task_listen_for", task_listen_for),
            "retry": _names.words("retry_listen_for", retry_listen_for),
            "flow": _names.words("flow_listen_for", flow_listen_for),
        }
        self._registered: list[Registration] = []

    def _flow_receiver(self, state: str, details: Details) -> None:
        """The flow entered `state`; `details`: engine, flow_name, flow_uuid, old_state."""
        self._receive("flow", state, details)

    def _task_receiver(self, state: str, details: Details) -> None:
        """A task entered `state`; `details`: task_name, task_uuid, old_state, and attempt, the
        number of its latest execution or reversion, 0 before the first, and how many there were of
        each: executions, reversions; at its end also result, worker, submitted, started, ended,
        runtime (see `models.Attempt`).
        """
        self._receive("task", state, details)

    def _retry_receiver(self, state: str, details: Details) -> None:
        """A retry entered `state`; `details`: as for tasks, with retry_name and retry_uuid."""
        self._receive("retry", state, details)

    def _receive(self, kind: str, state: str, details: Details) -> None:
        """What is of `kind` ('flow', 'task' or 'retry') entered `state`."""

    def register(self) -> None:
        """Begin to listen; does nothing while it listens already.

        :raises ValueError: there is no such state, and then nothing is registered.
        """
        if self._registered:
            return
        engine = self._engine
        hears_all = type(self)._receive is not Listener._receive
        try:
            for kind, chosen in _FILTERS.items():
                receiver = getattr(self, f"_{kind}_receiver")
                own = getattr(receiver, "__func__", None)
                if own is getattr(Listener, receiver.__name__) and not hears_all:
                    continue
                notifier = engine.notifier if kind == "flow" else engine.atom_notifier
                for state in dict.fromkeys(self._listen_for[kind]):
                    notifier.register(state, receiver, details_filter=chosen)
                    self._registered.append((notifier, state, receiver, chosen))
        except ValueError:
            Listener.deregister(self)
            raise

    def deregister(self) -> None:
        """Listen no longer; does nothing if it does not listen."""
        while self._registered:
            notifier, state, receiver, chosen = self._registered.pop()
            notifier.deregister(state, receiver, details_filter=chosen)

    def __enter__(self) -> Self:
        self.register()
        return self

    def __exit__(self, type: object, value: object, tb: object) -> None:
        try:
            self.deregister()
        except Exception:
            # It would hide what the flow raised.
            LOG.warning("A listener could not be deregistered from %s", self._engine, exc_info=True)


class DumpingListener(Listener, metaclass=abc.ABCMeta):
    """Makes a line of text of everything it hears; derive from it and write `_dump`."""

    @abc.abstractmethod
    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        """Write `message % args`; `exc_info`, if it is given and not None, belongs to it."""

    def _receive(self, kind: str, state: str, details: Details) -> None:
        who = details[f"{kind}_name"], details[f"{kind}_uuid"], state, details["old_state"]
        message = f"%s has moved {kind} '%s' (%s) into state '%s' from state '%s'"
        if kind == "flow" or state not in FINISH_STATES:
            self._dump(message, self._engine, *who)
            return
        result = details.get("result")
        failed = isinstance(result, ft.Failure)
        self._dump(
            f"{message} with result '%s' (failure=%s)",
            self._engine,
            *who,
            result,
            failed,
            exc_info=result.exc_info if isinstance(result, ft.Failure) else None,
        )
