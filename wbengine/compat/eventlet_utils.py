"""Whether eventlet is there."""

from __future__ import annotations

import importlib.util
from typing import Final

EVENTLET_AVAILABLE: Final = importlib.util.find_spec("eventlet") is not None


def check_for_eventlet(exc: BaseException | None = None) -> None:
    """Do nothing if eventlet is installed.

    :raises RuntimeError: it is not (or `exc`, if that is given).
    """
    if not EVENTLET_AVAILABLE:
        raise exc if exc is not None else RuntimeError("Eventlet is not currently available")
