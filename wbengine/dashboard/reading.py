"""What is kept of flows, read for pages: at the cost of what changed since the last page."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeVar

from wbengine.persistence import base as persistence
from wbengine.views import flow as flows
from wbengine.views import listing, masking, watching

__all__ = ["Store"]

#: Views are kept at hand for so many flows, with so many atoms together.
FLOWS: Final = 32
ATOMS: Final = 250_000

#: A view that took more seconds than this to make is shown for so many times as long.
DEAR: Final = 0.25
LINGERS: Final = 3.0

_T = TypeVar("_T")


class Store:
    """Reads a store.  Thread-safe, and blocks: it is for threads, not for the event loop.

    The latest view of flows that somebody looks at is kept at hand, and is brought up to date by
    what changed; forgetting it would lose nothing but time.
    """

    def __init__(self, backend: persistence.Backend, masker: masking.Masker) -> None:
        self._backend = backend
        self._masker = masker
        self._lock = threading.Lock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @property
    def backend(self) -> persistence.Backend:
        return self._backend

    def reading(self, read: Callable[[persistence.Connection], _T]) -> _T:
        """What `read` finds, with a connection of its own."""
        with contextlib.closing(self._backend.get_connection()) as connection:
            return read(connection)

    def check(self) -> None:
        """:raises StorageFailure: it cannot be reached, or not be read."""
        self.reading(lambda connection: listing.page(connection, limit=1, masker=self._masker))

    def flow(self, uuid: str) -> flows.FlowView:
        """A flow as it is now.

        :raises NotFound: it is not kept.
        """
        with self._lock:
            known = self._known.get(uuid)
            if known is None:
                known = self._known[uuid] = _Known(self.watch(uuid))
            self._known.move_to_end(uuid)
        try:
            view = known.turn()
        except BaseException:
            self._forget(uuid)
            raise
        self._make_room()
        return view

    def events(self, uuid: str) -> list[watching.Event]:
        """What has happened to a flow so far, the oldest first, as far as it is remembered.

        :raises NotFound: it is not kept.
        """
        with self.watch(uuid) as watch:
            return watch.turn()

    def watch(self, uuid: str, cursor: str | None = None) -> watching.Watch:
        """What happens to a flow, from a moment on."""
        return watching.Watch(self._backend, uuid, masker=self._masker, cursor=cursor)

    def close(self) -> None:
        """Forget what is at hand."""
        for uuid in list(self._known):
            self._forget(uuid)

    def _forget(self, uuid: str) -> None:
        with self._lock:
            known = self._known.pop(uuid, None)
        if known is not None:
            known.close()

    def _make_room(self) -> None:
        with self._lock:
            sizes = {uuid: known.size for uuid, known in self._known.items()}
        while len(sizes) > 1 and (len(sizes) > FLOWS or sum(sizes.values()) > ATOMS):
            oldest = next(iter(sizes))
            del sizes[oldest]
            self._forget(oldest)


class _Known:
    """The latest view of a flow."""

    def __init__(self, watch: watching.Watch) -> None:
        self._lock = threading.Lock()
        self._watch = watch
        self._view: flows.FlowView | None = None
        self._cost = self._made = 0.0

    @property
    def size(self) -> int:
        return 0 if self._view is None else self._view.total

    def turn(self) -> flows.FlowView:
        """The flow as it is now; of a huge one, as it was a moment ago."""
        with self._lock:
            began = time.monotonic()
            lingers = LINGERS * self._cost if self._cost > DEAR else 0.0
            if self._view is not None and began - self._made < lingers:
                return self._view
            self._watch.turn()
            self._view = self._watch.view()
            self._made = time.monotonic()
            self._cost = self._made - began
            return self._view

    def close(self) -> None:
        with self._lock:
            self._watch.close()
