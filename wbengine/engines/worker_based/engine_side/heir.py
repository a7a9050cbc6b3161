"""What an executor has to do with runs before its engine's, and with those that come after."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable

from wbengine import exceptions, invocation
from wbengine.engines.worker_based import ledger as ledgers
from wbengine.engines.worker_based import proxy, types
from wbengine.engines.worker_based.requests import ledger_rows
from wbengine.engines.worker_based.requests.tracker import RequestTracker

__all__ = ["Heir", "passes"]


def passes(check: Callable[[], object]) -> bool:
    """Whether a flow is still ours, as its guard knows."""
    try:
        check()
    except exceptions.LeaseLost:
        return False
    return True


class Heir(invocation.TaskExecutor):
    """An executor that can go on with what another one began, and leave its own to another."""

    _lock: threading.RLock
    _thread: threading.Thread | None
    _uuid: str
    _interop: str | None
    _proxy: proxy.Proxy
    _finder: types.ProxyWorkerFinder
    _tracker: RequestTracker

    keeps_times = True

    def __init__(self) -> None:
        self._ledger: ledgers.base.Ledger | None = None
        self._rows: ledger_rows.Rows | None = None
        self._disowned = False
        # By flow, what raises LeaseLost as soon as it is not ours any more.
        self._guards: dict[str, Callable[[], object]] = {}
        # The same of the one flow whose next owner may take our name; None: there is none.
        self._sole: Callable[[], object] | None = None

    def _make_proxy(self) -> proxy.Proxy:
        raise NotImplementedError

    def disown(self, flow: str | None = None) -> None:
        """Forget everything (of one flow), as it is: nothing is told, revoked, dropped, or
        acknowledged any more.
        """
        with self._lock:
            self._tracker.recovery.disown(flow)
            self._disowned = flow is None

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        return True  # though TaskFlow's workers cannot be asked: what they had is lost, then

    @property
    def knows_all(self) -> bool:  # type: ignore[override]
        return self._ledger is not None and self._interop is None

    @property
    def ledger(self) -> str | None:
        """The digest of the ledger, once started; None: there is none."""
        return self._ledger.digest if self._ledger is not None else None

    def succeed(self, uuid: str) -> bool:
        """Take the name of an executor that is gone, with the answers that were sent to it.

        False, and without effect, on one that is started, and where the queue of who died goes with
        him: then all depends on the ledger, or on what workers remember.
        """
        with self._lock:
            if self._thread is not None or not self.inheritable:
                return False
            self._uuid = self._finder.uuid = uuid
            self._tracker.recovery.inherit(uuid)
            self._proxy = self._make_proxy()
        return True

    def expect(self, flow: str, used: Collection[str | None]) -> None:
        """Say which ledgers earlier runs of a flow used (see `Recovery.expect`)."""
        with self._lock:
            self._tracker.recovery.expect(flow, used)

    def guard(self, flow: str, check: Callable[[], object] | None, *, sole: bool = False) -> None:
        """Let `check` be called before anything of a flow is published or taken back.

        It raises LeaseLost when the flow is somebody else's; None: as it likes.  `sole`: whoever
        owns the flow next may take the name of this executor, and so read its answers.
        """
        if check is not None:
            self._guards[flow] = check
            self._sole = check if sole else None

    def let_go(self, flow: str) -> None:
        """Forget what was said of a flow, whose run is over."""
        self._guards.pop(flow, None)
        self._sole = None
        with self._lock:
            self._tracker.recovery.expect(flow, None)

    @property
    def inheritable(self) -> bool:
        """Whether the name of this executor is of use to the next one: see `succeed`."""
        return not self._proxy.target.ours and self._interop is None

    def sweep(self, ended: Iterable[str]) -> None:
        """Remove the rows of requests that ended, and that nobody will retire any more."""
        if self._rows is not None:
            self._rows.sweep(ended)
