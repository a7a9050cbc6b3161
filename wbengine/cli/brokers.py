"""The broker of engines whose tasks run on workers: is it there?"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wbengine.cli.config import Settings

__all__ = ["check"]


def check(settings: Settings, options: Mapping[str, Any]) -> None:
    """Reach the broker that the `options` of an engine mean, and let go of it.

    Before anything is kept: an engine would wait longer, and leave a flow behind that never ran.

    :raises TransportFailure: it cannot be reached in time.
    :raises Failed: it cannot be there.
    """
    from wbengine import transports
    from wbengine.engines.worker_based import connecting

    try:
        target = transports.resolve(
            options.get("url"),
            options.get("transport"),
            options.get("transport_options"),
            exchange=options.get("exchange"),
        )
        target.check()
    except (ValueError, ImportError) as error:
        raise settings.failed("url", str(error)) from error
    connection = connecting.reach(target, threading.Event(), longest=1.0, within=settings.timeout)
    connecting.release(connection)
