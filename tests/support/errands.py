"""Parcels whose errands are told one by one, to functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from wbengine.engines.worker_based.connections.parcels import Errand, Parcel
from wbengine.engines.worker_based.messages import envelope as env


class Told(Errand):
    """Runs what it was given: `before()` may return False to leave the parcel unsent."""

    def __init__(
        self,
        before: Callable[[], Any] | None = None,
        after: Callable[[], Any] | None = None,
        failed: Callable[[BaseException], Any] | None = None,
        unrouted: Callable[[], Any] | None = None,
        uncertain: Callable[[], Any] | None = None,
    ) -> None:
        self._before = before
        self._after = after
        self._failed = failed
        self._unrouted = unrouted
        self._uncertain = uncertain

    @property
    def mandatory(self) -> bool:  # type: ignore[override]
        return self._unrouted is not None

    @property
    def repeats(self) -> bool:
        return self._uncertain is None

    def prepare(self, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            if self._before is not None and not self._before():
                parcel.withdrawn = True

    def sent(self, parcels: Sequence[Parcel]) -> None:
        if self._after is not None:
            self._after()

    def failed(self, parcel: Parcel, error: BaseException) -> None:
        if self._failed is not None:
            self._failed(error)

    def unrouted(self, parcel: Parcel) -> None:
        assert self._unrouted is not None
        self._unrouted()

    def uncertain(self, parcel: Parcel) -> None:
        assert self._uncertain is not None
        self._uncertain()


def parcel(envelope: env.Envelope, **told: Any) -> Parcel:
    """A parcel with an errand of its own."""
    return Parcel(envelope, Told(**told))
