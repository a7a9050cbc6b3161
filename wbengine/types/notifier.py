"""Notifiers, which call registered callbacks when events occur."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from wbengine._introspection import object_names

LOG = logging.getLogger(__name__)

Callback = Callable[..., Any]
Sink = Callable[[str, dict[str, Any]], Any]
DetailsFilter = Callable[[dict[str, Any]], Any]


# Protects the registrations of all notifiers. Reentrant, because a signal handler may register a
# callback while it interrupts another registration.
_changing: Final = threading.RLock()


class Listener:
    """A callback with its registered arguments and filter."""

    __slots__ = ("_kwargs", "args", "callback", "details_filter")

    def __init__(
        self,
        callback: Callback,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        details_filter: DetailsFilter | None = None,
    ) -> None:
        self.callback = callback
        self.args = tuple(args or ())
        self._kwargs = dict(kwargs or ())
        self.details_filter = details_filter

    @property
    def kwargs(self) -> dict[str, Any]:
        return self._kwargs.copy()

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        """Call the callback unless the filter returns False. Both may raise exceptions."""
        if self.details_filter is not None and not self.details_filter(details):
            return
        self.callback(event_type, *self.args, details=details, **self._kwargs)

    def is_equivalent(
        self, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        return self.callback == callback and self.details_filter == details_filter

    def __repr__(self) -> str:
        return f"Listener({object_names.dotted(self.callback)})"


class Notifier:
    """Calls the callbacks that are registered for an event, in the calling thread.

    Callbacks for all events are called first, then callbacks for this event, each in the order of
    registration. The call is `callback(event_type, *args, details=details, **kwargs)`. Each
    callback receives its own copy of the details. Its exceptions are logged.

    Callbacks may be registered and removed at any time, also by callbacks and by other threads.
    This does not affect a notification in progress.
    """

    #: Event type of callbacks for all events.
    ANY: ClassVar[str] = "*"
    #: Names that arguments of callbacks must not have.
    RESERVED_KEYS: ClassVar[tuple[str, ...]] = ("details",)

    __slots__ = ("__weakref__", "topics")

    def __init__(self) -> None:
        #: Callbacks by event, without events that have none.
        # Tuples are replaced, not modified, so that concurrent iterations stay valid.
        self.topics: dict[str, tuple[Listener, ...]] = {}

    def __len__(self) -> int:
        return sum(map(len, self.topics.copy().values()))

    def __bool__(self) -> bool:
        return True

    def can_be_registered(self, event_type: str) -> bool:
        """Return True if callbacks may be registered for `event_type`."""
        return True

    def can_trigger_notification(self, event_type: str) -> bool:
        """Return True if `event_type` may be notified."""
        return event_type != self.ANY

    def is_registered(
        self, event_type: str, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        """Return True if this callback is registered for `event_type` with this filter."""
        return any(
            listener.is_equivalent(callback, details_filter)
            for listener in self.topics.get(event_type, ())
        )

    def register(
        self,
        event_type: str,
        callback: Callback,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        details_filter: DetailsFilter | None = None,
    ) -> Listener:
        """Call `callback` for each event of `event_type` (`ANY`: for each event).

        :param details_filter: called with the details. If it returns False, `callback` is skipped.
        :raises ValueError: if `callback` is not callable, not allowed for this event, or already
            registered.
        :raises TypeError: if `args` or `kwargs` have a wrong type.
        :raises KeyError: if `kwargs` contains a reserved name.
        """
        if not callable(callback):
            raise ValueError(f"Notification callback must be callable, got {callback!r}")
        if details_filter is not None and not callable(details_filter):
            raise ValueError(f"Details filter must be callable, got {details_filter!r}")
        if not self.can_be_registered(event_type):
            raise ValueError(self._refusal(event_type))
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(f"The kwargs of a callback must be a dict, got {kwargs!r}")
        if args is not None and (isinstance(args, str) or not isinstance(args, Iterable)):
            raise TypeError(f"The args of a callback must be a list or tuple, got {args!r}")
        for key in self.RESERVED_KEYS:
            if kwargs and key in kwargs:
                raise KeyError(f"Reserved key {key!r} is not allowed in kwargs")
        listener = Listener(callback, args, kwargs, details_filter)
        with _changing:
            if self.is_registered(event_type, callback, details_filter):
                raise ValueError(
                    f"Event callback {object_names.dotted(callback)} is already registered for"
                    f" {event_type!r} with the same details filter"
                )
            self.topics[event_type] = (*self.topics.get(event_type, ()), listener)
        return listener

    def _refusal(self, event_type: str) -> str:
        return f"Callbacks cannot be registered for event type {event_type!r}"

    def deregister(
        self, event_type: str, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        """Remove a callback of `event_type`. Return True if it was registered."""
        with _changing:
            before = self.topics.get(event_type, ())
            for place, listener in enumerate(before):
                if listener.is_equivalent(callback, details_filter):
                    after = before[:place] + before[place + 1 :]
                    if after:
                        self.topics[event_type] = after
                    else:
                        del self.topics[event_type]
                    return True
        return False

    def deregister_event(self, event_type: str) -> int:
        """Remove all callbacks of `event_type`. Return their number."""
        with _changing:
            return len(self.topics.pop(event_type, ()))

    def reset(self) -> None:
        with _changing:
            self.topics.clear()

    def copy(self) -> Notifier:
        """Return an independent notifier with the same callbacks."""
        duplicate = type(self).__new__(type(self))
        for cls in type(self).__mro__:
            for slot in vars(cls).get("__slots__", ()):
                if slot != "__weakref__":
                    setattr(duplicate, slot, getattr(self, slot))
        for name, value in getattr(self, "__dict__", {}).items():
            setattr(duplicate, name, value)
        duplicate.topics = self.topics.copy()
        return duplicate

    __copy__ = copy

    def listeners_iter(self) -> Iterator[tuple[str, list[Listener]]]:
        """Iterate over `(event_type, listeners)` for each event with callbacks."""
        for event_type, listeners in self.topics.copy().items():
            yield event_type, list(listeners)

    def notify(self, event_type: str, details: Mapping[str, Any] | None = None) -> None:
        """Call the callbacks registered for `event_type`. Log their exceptions."""
        if not self.can_trigger_notification(event_type):
            LOG.debug("Event type %r is not allowed to trigger notifications", event_type)
            return
        topics = self.topics
        if topics:
            _tell(topics.get(self.ANY, ()), event_type, details)
            _tell(topics.get(event_type, ()), event_type, details)

    def notify_only(self, event_type: str, details: Mapping[str, Any] | None = None) -> None:
        """Notify callbacks of this event, but not of `ANY`: those expect only state changes."""
        _tell(self.topics.get(event_type, ()), event_type, details)


def _tell(
    listeners: tuple[Listener, ...], event_type: str, details: Mapping[str, Any] | None
) -> None:
    for listener in listeners:
        try:
            listener(event_type, dict(details) if details else {})
        except Exception:
            LOG.warning("%r failed for event %r", listener, event_type, exc_info=True)


class RestrictedNotifier(Notifier):
    """A notifier that accepts callbacks only for given events and `ANY`.

    Other events may still be notified. Callbacks for `ANY` receive them.
    """

    __slots__ = ("_allow_any", "_events")

    def __init__(self, watchable_events: Iterable[str], allow_any: bool = True) -> None:
        super().__init__()
        self._events = frozenset(object_names.as_tuple("A notifier", watchable_events))
        self._allow_any = allow_any

    def events_iter(self) -> Iterator[str]:
        """Iterate over the events for which callbacks can be registered."""
        return iter(self._events)

    def can_be_registered(self, event_type: str) -> bool:
        return event_type in self._events or (event_type == self.ANY and self._allow_any)

    def _refusal(self, event_type: str) -> str:
        event_names = sorted(map(str, self._events))
        return (
            f"{super()._refusal(event_type)}{object_names.hint(str(event_type), event_names)};"
            f" known events: {', '.join(event_names) or 'none'}"
        )


def relay(sink: Sink, event_type: str, details: Mapping[str, Any] | None) -> None:
    """Call `sink`. Log its exceptions."""
    try:
        sink(event_type, dict(details) if details else {})
    except Exception:
        LOG.warning("Event %r could not be forwarded", event_type, exc_info=True)


class RelayingNotifier(RestrictedNotifier):
    """A notifier that passes each event to `sink` (if set) after the callbacks."""

    __slots__ = ("sink",)

    def __init__(self, watchable_events: Iterable[str], sink: Sink | None = None) -> None:
        super().__init__(watchable_events)
        self.sink = sink

    def notify(self, event_type: str, details: Mapping[str, Any] | None = None) -> None:
        super().notify(event_type, details)
        if self.sink is not None and self.can_trigger_notification(event_type):
            relay(self.sink, event_type, details)


@contextlib.contextmanager
def register_deregister(
    notifier: Notifier,
    event_type: str,
    callback: Callback | None = None,
    args: Sequence[Any] | None = None,
    kwargs: Mapping[str, Any] | None = None,
    details_filter: DetailsFilter | None = None,
) -> Iterator[None]:
    """Register `callback` for the duration of a `with` block. None registers nothing."""
    if callback is None:
        yield
        return
    notifier.register(event_type, callback, args, kwargs, details_filter)
    try:
        yield
    finally:
        notifier.deregister(event_type, callback, details_filter)
