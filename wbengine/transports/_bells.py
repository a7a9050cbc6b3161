"""Bells: a FIFO for each queue of a folder, which who publishes rings and who waits hears.

They carry nothing: a bell that is not heard, is full, or is gone costs a look at the queue later.
"""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterable
from typing import Final

from wbengine.transports._nudge import Nudge

_O_RING: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_O_HEAR: Final = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

_FIRST_PAUSE: Final = 0.001


def ring(folder: str, queue: str) -> None:
    """Something came into a queue."""
    try:
        fd = os.open(f"{folder}/{queue}", _O_RING)
    except OSError:  # nobody waits
        return
    try:
        os.write(fd, b"!")
    except OSError:  # it is full
        pass
    finally:
        os.close(fd)


def remove(folder: str, queue: str) -> None:
    """The queue is gone."""
    try:
        os.unlink(f"{folder}/{queue}")
    except OSError:
        pass


class Bells:
    """The bells of the queues that one connection consumes.  `nudge` is for any thread, the rest
    for one."""

    def __init__(self, folder: str, interval: float | None, used: bool) -> None:
        self._folder = folder
        self._used = used
        self._interval = interval
        self._pause = _FIRST_PAUSE
        self._fds: dict[str, int] = {}
        self._all = select.poll()
        self._heard = 0
        self._nudge = Nudge()

    def hear(self, queue: str) -> None:
        """Wake up when this one rings."""
        self._heard += 1
        path = f"{self._folder}/{queue}"
        if not self._used:
            return
        try:
            try:
                os.mkfifo(path, 0o600)
            except FileExistsError:
                pass
            fd = os.open(path, _O_HEAR)
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                self._fds[queue] = fd
                self._all.register(fd, select.POLLIN)
            else:
                os.close(fd)
        except OSError:  # there can be none: the queue is looked at more often
            pass

    def forget(self, queue: str) -> None:
        """Undo `hear`."""
        self._heard -= 1
        fd = self._fds.pop(queue, -1)
        if fd >= 0:
            self._all.unregister(fd)
            os.close(fd)

    def came(self) -> None:
        """There was something: look often again, where there are no bells."""
        self._pause = _FIRST_PAUSE

    def pause(self) -> float:
        """Seconds until the queues are to be looked at, whether their bells ring or not; without
        bells longer each time, until something `came`."""
        if len(self._fds) == self._heard:
            return self._interval or 1.0
        pause = min(self._pause, self._interval or 0.1)
        self._pause = pause * 2
        return pause

    def is_ringing(self) -> bool:
        """Whether one of them rang and nobody answered it yet."""
        return bool(self._fds) and bool(self._all.poll(0))

    def answer(self, queue: str) -> bool:
        """Whether this one rang; who is told so sees to it."""
        fd = self._fds.get(queue, -1)
        try:
            return fd >= 0 and bool(os.read(fd, 65536))
        except BlockingIOError:
            return False

    def wait(self, timeout: float, queues: Iterable[str]) -> list[str]:
        """Block until one of these rings, `nudge` is called, or the time is over: those that rang,
        and were not answered by somebody else."""
        waiting = select.poll()
        waiting.register(self._nudge.fd, select.POLLIN)
        for queue in queues:
            if queue in self._fds:
                waiting.register(self._fds[queue], select.POLLIN)
        ready = {fd for fd, _ in waiting.poll(max(0.0, timeout * 1000))}
        if self._nudge.fd in ready:
            self._nudge.take()
        if not ready:
            self._mend()
        return [queue for queue in queues if self._fds.get(queue) in ready and self.answer(queue)]

    def _mend(self) -> None:
        """Make bells again that somebody removed."""
        for queue, fd in tuple(self._fds.items()):
            try:
                if os.stat(f"{self._folder}/{queue}").st_ino == os.fstat(fd).st_ino:
                    continue
            except OSError:
                pass
            self.forget(queue)
            self.hear(queue)

    def nudge(self) -> None:
        """End a `wait`, from any thread."""
        self._nudge.give()

    def close(self) -> None:
        """Free the file descriptors."""
        for queue in tuple(self._fds):
            self.forget(queue)
        self._nudge.close()
