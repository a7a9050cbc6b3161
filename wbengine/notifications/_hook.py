"""Events to a function of the program."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from wbengine._introspection import object_names
from wbengine._security import masking
from wbengine.notifications._event import Event
from wbengine.notifications._message import Message
from wbengine.notifications._sender import SendError

__all__ = ["Hook"]


class Hook:
    """Calls a function with each event.

    :param function: the function, or its name: 'shop.alerts:on_event'.
    :raises ImportError: if the function cannot be imported.
    :raises ValueError: if it is not callable.
    """

    takes_all: Final = True

    def __init__(self, function: Callable[[Event], Any] | str) -> None:
        called = object_names.load(function) if isinstance(function, str) else function
        if not callable(called):
            raise ValueError(f"hook must be a function, got {type(called).__name__}")
        self._function: Callable[[Event], Any] = called

    @property
    def place(self) -> str:
        return object_names.dotted(self._function)

    def send(self, message: Message) -> None:
        for event in message.events:
            try:
                self._function(event)
            except (Exception, SystemExit, KeyboardInterrupt) as error:
                reason = masking.masked(f"{type(error).__name__}: {error}")
                raise SendError(f"the hook failed: {reason}") from error
