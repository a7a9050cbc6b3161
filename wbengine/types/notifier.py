"""Telling interested callables that something happened."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final

from wbengine import _names

LOG = logging.getLogger(__name__)

Callback = Callable[..., Any]
Sink = Callable[[str, dict[str, Any]], Any]
DetailsFilter = Callable[[dict[str, Any]], Any]


# Held while callbacks of a notifier are added or removed; by a signal's handler too, perhaps in the
# midst of that.
_changing: Final = threading.RLock()


class Listener:
    """A callback with the arguments and the filter it was registered with."""

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
        """Call the callback, unless the filter says no; either may raise."""
        if self.details_filter is not None and not self.details_filter(details):
            return
        self.callback(event_type, *self.args, details=details, **self._kwargs)

    def is_equivalent(
        self, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        """Would registering `callback` with `details_filter` register the same thing again?"""
        return self.callback == callback and self.details_filter == details_filter

    def __repr__(self) -> str:
        return f"Listener({_names.dotted(self.callback)})"


class Notifier:
    """Calls the callbacks registered for an event, in this thread.

    Order: those registered for any event, then those for this one, each in the order registered.
    A callback is called as `callback(event_type, *args, details=details, **kwargs)`, with a copy
    of the details of its own; what it raises is logged and goes no further.

    Callbacks may be registered and removed at any time, also by a callback and from other threads:
    a notification under way goes on with those it started with.
    """

    #: Stands for all events when registering.
    ANY: ClassVar[str] = "*"
    #: Names of arguments that callbacks cannot be registered with.
    RESERVED_KEYS: ClassVar[tuple[str, ...]] = ("details",)

    __slots__ = ("__weakref__", "topics")

    def __init__(self) -> None:
        #: Callbacks by event, for others to look at; an event nobody listens to is not in it.
        # Tuples, replaced as a whole: whoever iterates over one is not disturbed.
        self.topics: dict[str, tuple[Listener, ...]] = {}

    def __len__(self) -> int:
        """How many callbacks are registered."""
        return sum(map(len, self.topics.copy().values()))

    def __bool__(self) -> bool:
        """A notifier is a thing, not a container: true also when nobody listens."""
        return True

    def can_be_registered(self, event_type: str) -> bool:
        """May callbacks be registered for `event_type`?"""
        return True

    def can_trigger_notification(self, event_type: str) -> bool:
        """May `event_type` be notified?"""
        return event_type != self.ANY

    def is_registered(
        self, event_type: str, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        """Is this very callback, with this very filter, registered for `event_type`?"""
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
        """Call `callback` whenever `event_type` (or, for `ANY`, anything) happens.

        `details_filter`, called with the details, decides each time whether to.

        :raises ValueError: not callable, not allowed for this event, or registered already.
        :raises TypeError: `args` or `kwargs` are of a wrong type.
        :raises KeyError: `kwargs` holds a reserved name.
        """
        if not callable(callback):
            raise ValueError(f"Notification callback must be callable, not {callback!r}")
        if details_filter is not None and not callable(details_filter):
            raise ValueError(f"Details filter must be callable, not {details_filter!r}")
        if not self.can_be_registered(event_type):
            raise ValueError(self._refusal(event_type))
        if kwargs is not None and not isinstance(kwargs, Mapping):
            raise TypeError(f"The kwargs of a callback must be a dict, not {kwargs!r}")
        if args is not None and (isinstance(args, str) or not isinstance(args, Iterable)):
            raise TypeError(f"The args of a callback must be a list or tuple, not {args!r}")
        for key in self.RESERVED_KEYS:
            if kwargs and key in kwargs:
                raise KeyError(f"Reserved key {key!r} is not allowed in kwargs")
        listener = Listener(callback, args, kwargs, details_filter)
        with _changing:
            if self.is_registered(event_type, callback, details_filter):
                raise ValueError(
                    f"Event callback {_names.dotted(callback)} is already registered for"
                    f" {event_type!r} with the same details filter"
                )
            self.topics[event_type] = (*self.topics.get(event_type, ()), listener)
        return listener

    def _refusal(self, event_type: str) -> str:
        return f"Event type {event_type!r} cannot have a callback registered"

    def deregister(
        self, event_type: str, callback: Callback, details_filter: DetailsFilter | None = None
    ) -> bool:
        """Stop calling `callback` for `event_type`; was it registered?"""
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
        """Forget all callbacks of `event_type`; how many were there?"""
        with _changing:
            return len(self.topics.pop(event_type, ()))

    def reset(self) -> None:
        """Forget all callbacks."""
        with _changing:
            self.topics.clear()

    def copy(self) -> Notifier:
        """A notifier with the same callbacks, independent from now on."""
        other = type(self).__new__(type(self))
        for cls in type(self).__mro__:
            for slot in vars(cls).get("__slots__", ()):
                if slot != "__weakref__":
                    setattr(other, slot, getattr(self, slot))
        for name, value in getattr(self, "__dict__", {}).items():
            setattr(other, name, value)
        other.topics = self.topics.copy()
        return other

    __copy__ = copy

    def listeners_iter(self) -> Iterator[tuple[str, list[Listener]]]:
        """`(event_type, listeners)` for each event type with callbacks."""
        for event_type, listeners in self.topics.copy().items():
            yield event_type, list(listeners)

    def notify(self, event_type: str, details: Mapping[str, Any] | None = None) -> None:
        """Call whoever is registered for `event_type`; never raises what a callback raises."""
        if not self.can_trigger_notification(event_type):
            LOG.debug("Event type %r is not allowed to trigger notifications", event_type)
            return
        topics = self.topics
        if topics:
            _tell(topics.get(self.ANY, ()), event_type, details)
            _tell(topics.get(event_type, ()), event_type, details)

    def notify_only(self, event_type: str, details: Mapping[str, Any] | None = None) -> None:
        """`notify` those who registered for this very event: whoever is registered for `ANY`
        expects changes of states.
        """
        _tell(self.topics.get(event_type, ()), event_type, details)


def _tell(
    listeners: tuple[Listener, ...], event_type: str, details: Mapping[str, Any] | None
) -> None:
    for listener in listeners:
        try:
            listener(event_type, dict(details) if details else {})
        except Exception:
            LOG.warning("%r failed when told of event %r", listener, event_type, exc_info=True)


class RestrictedNotifier(Notifier):
    """A notifier whose callbacks may be registered for the events that it was made with, and `ANY`.

    Other events may be notified all the same: the callbacks for `ANY` hear them.
    """

    __slots__ = ("_allow_any", "_events")

    def __init__(self, watchable_events: Iterable[str], allow_any: bool = True) -> None:
        super().__init__()
        self._events = frozenset(_names.words("A notifier", watchable_events))
        self._allow_any = allow_any

    def events_iter(self) -> Iterator[str]:
        """The events this notifier knows."""
        return iter(self._events)

    def can_be_registered(self, event_type: str) -> bool:
        return event_type in self._events or (event_type == self.ANY and self._allow_any)

    def _refusal(self, event_type: str) -> str:
        known = sorted(map(str, self._events))
        return (
            f"{super()._refusal(event_type)}{_names.hint(str(event_type), known)};"
            f" known events: {', '.join(known) or 'none'}"
        )


def relay(sink: Sink, event_type: str, details: Mapping[str, Any] | None) -> None:
    """Tell `sink`; what it raises is logged."""
    try:
        sink(event_type, dict(details) if details else {})
    except Exception:
        LOG.warning("Event %r could not be passed on", event_type, exc_info=True)


class RelayingNotifier(RestrictedNotifier):
    """Passes what it is told on to one `sink`, if there is one, after the listeners."""

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
    """Keep `callback` registered for the length of a `with` block; None registers nothing."""
    if callback is None:
        yield
        return
    notifier.register(event_type, callback, args, kwargs, details_filter)
    try:
        yield
    finally:
        notifier.deregister(event_type, callback, details_filter)
