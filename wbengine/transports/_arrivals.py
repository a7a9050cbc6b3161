"""What came into the consumed queue folders, and waiting for more.

On Linux the kernel tells the names (inotify); a folder is listed when it is watched first, after
an overflow, and now and then as a safety net.  Elsewhere folders are listed again, after 1 ms, 2
ms, ... up to `interval`, and from 1 ms again once something came.
"""

from __future__ import annotations

import heapq
import os
import re
import select
import time
from typing import Any, Final

from wbengine.transports import _files
from wbengine.transports._nudge import Nudge

try:
    import inotify_simple as _inotify
except (ImportError, OSError):  # pragma: no cover - not Linux
    _inotify = None

#: What the file of a message is called.
MESSAGE_NAME: Final = re.compile(r"[0-9]{21}\.[0-9a-f]{12}(?:\.r)?").fullmatch

_FIRST_PAUSE: Final = 0.001
#: Listing again while there is work only costs; names that were missed wait at most so long.
_BUSY_RESCAN: Final = 30.0
_EVENTS_AT_ONCE: Final = 256 * 1024


class View:
    """What is known of one consumed queue; `names` is a heap of messages to be taken."""

    __slots__ = ("foreign", "ignored", "known", "listed", "names", "path", "queue", "users", "wd")

    def __init__(self, queue: str, path: str) -> None:
        self.queue = queue
        self.path = path
        self.users = 0
        self.wd = -1
        self.listed = float("-inf")
        self.names: list[str] = []
        self.known: set[str] = set()
        self.foreign: list[str] = []
        self.ignored: set[str] = set()

    def add(self, name: str) -> None:
        """A message came; one that is known already changes nothing."""
        if name in self.known or name in self.ignored:
            return
        if MESSAGE_NAME(name):
            self.known.add(name)
            heapq.heappush(self.names, name)
        else:
            self.foreign.append(name)

    def pop(self) -> str | None:
        """The first name, which may be gone from the folder by now."""
        if not self.names:
            return None
        name = heapq.heappop(self.names)
        self.known.discard(name)
        return name

    def list(self, now: float, *, twice: bool) -> None:
        """Read the folder.

        A name that comes in while a folder is read may be missed although a later one is seen.  The
        kernel's events fill that gap; without them (`twice`) a second reading does, from which only
        names are taken that are older than one of the same publisher seen in the first.
        """
        self.listed = now
        names = _files.names(self.path)
        if twice and names:
            newest: dict[str, str] = {}
            for name in names:
                sender = name[22:34]
                newest[sender] = max(newest.get(sender, ""), name[1:21])
            names += [n for n in _files.names(self.path) if n[1:21] < newest.get(n[22:34], "")]
        for name in names:
            self.add(name)


class Arrivals:
    """The consumed queues of one connection.  `nudge` is for any thread, the rest for one."""

    def __init__(self, folder: str, holders: str, interval: float | None, inotify: bool) -> None:
        self.views: dict[str, View] = {}
        #: A holder ended, so claims may be orphaned.
        self.holder_ended = False
        self._folder = folder
        self._holders = holders
        self._wanted = inotify and _inotify is not None
        self._notify: Any = None
        self._interval = interval
        self._pause = _FIRST_PAUSE
        self._by_wd: dict[int, View] = {}
        self._nudge = Nudge()
        self._poll = select.poll()
        self._poll.register(self._nudge.fd, select.POLLIN)

    @property
    def interval(self) -> float:
        """Seconds between two listings of an idle queue."""
        if self._interval is not None:
            return self._interval
        return 0.1 if self._notify is None else 1.0

    # -- what to look at

    def watch(self, queue: str) -> None:
        """Look at this queue; counted."""
        if self._wanted and self._notify is None:
            self._start_inotify()
        view = self.views.get(queue)
        if view is None:
            view = self.views[queue] = View(queue, f"{self._folder}/{queue}")
            self._rewatch(view)
        view.users += 1

    def unwatch(self, queue: str) -> None:
        """Undo one `watch`."""
        view = self.views[queue]
        view.users -= 1
        if not view.users:
            del self.views[queue]
            self._unwatch(view)

    def _start_inotify(self) -> None:
        try:
            self._notify = _inotify.INotify(nonblocking=True)
            flags = _inotify.flags
            self._mask = flags.MOVED_TO | flags.MOVE_SELF | flags.DELETE_SELF | flags.ONLYDIR
            self._gone = flags.MOVE_SELF | flags.DELETE_SELF | flags.IGNORED
            self._notify.add_watch(self._holders, flags.CLOSE_WRITE | flags.ONLYDIR)
            self._poll.register(self._notify.fileno(), select.POLLIN)
        except OSError:  # the user's limit of instances is reached: polling works as well
            self._wanted = False
            self._stop_inotify()

    def _stop_inotify(self) -> None:
        notify, self._notify = self._notify, None
        if notify is not None:
            notify.close()

    def _rewatch(self, view: View) -> None:
        if self._notify is None:
            return
        try:
            view.wd = self._notify.add_watch(view.path, self._mask)
            self._by_wd[view.wd] = view
        except OSError:
            view.wd = -1

    def _unwatch(self, view: View) -> None:
        wd, view.wd = view.wd, -1
        if wd >= 0 and self._by_wd.pop(wd, None) is not None:
            try:
                self._notify.rm_watch(wd)
            except OSError:
                pass

    # -- what came

    def refresh(self) -> int:
        """Learn of new messages; how many are known."""
        now = time.monotonic()
        views = self.views.values()
        for view in views:
            if self._due(view, now):
                if view.wd < 0:
                    self._rewatch(view)
                view.list(now, twice=view.wd < 0)
        if self._notify is not None:
            # After listing: see View.list.
            self._read_events()
        known = sum(len(view.names) for view in views)
        if known:
            self._pause = _FIRST_PAUSE
        return known

    def _due(self, view: View, now: float) -> bool:
        age = now - view.listed
        if view.wd < 0:
            return not view.names or age >= self.interval
        return age >= (_BUSY_RESCAN if view.names else self.interval)

    def _read_events(self) -> None:
        while True:
            try:
                data = os.read(self._notify.fileno(), _EVENTS_AT_ONCE)
            except BlockingIOError:
                return
            for wd, mask, _, name in _inotify.parse_events(data):
                view = self._by_wd.get(wd)
                if view is None:
                    if wd < 0:  # overflow: names were lost
                        for every in self.views.values():
                            every.listed = float("-inf")
                    elif name:
                        self.holder_ended = True
                elif mask & self._gone:
                    self._unwatch(view)
                    view.listed = float("-inf")
                elif name:
                    view.add(name)
            if len(data) < _EVENTS_AT_ONCE // 2:
                return

    # -- waiting

    def wait(self, timeout: float | None) -> None:
        """Block until something may have come."""
        if any(view.listed == float("-inf") for view in self.views.values()):
            return
        if all(view.wd >= 0 for view in self.views.values()):
            pause = self.interval
        else:
            pause = min(self._pause, self.interval)
            self._pause = pause * 2
        if timeout is not None and timeout < pause:
            pause = timeout
        ready = self._poll.poll(max(0.0, pause * 1000))
        if any(fd == self._nudge.fd for fd, _ in ready):
            self._nudge.take()

    def nudge(self) -> None:
        """End a `wait`, from any thread."""
        self._nudge.give()

    def close(self) -> None:
        """Free the file descriptors."""
        self.views.clear()
        self._stop_inotify()
        self._nudge.close()
