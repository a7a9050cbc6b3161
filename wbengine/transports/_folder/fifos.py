"""Wake-up of consumers in a folder: one FIFO for each queue.

Publishers write to the FIFO, and consumers wait for it. It carries no data: if a wake-up is lost,
because the FIFO is full or was deleted, the consumer finds the message when it next polls.
"""

from __future__ import annotations

import contextlib
import os
import select
import stat
from collections.abc import Iterable
from typing import Final

from wbengine.transports._nudge import Nudge

_O_NOTIFY: Final = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_O_WAIT: Final = os.O_RDWR | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC

_FIRST_PAUSE_SECONDS: Final = 0.001


def notify(folder: str, queue: str) -> None:
    """Wake the consumers of a queue."""
    try:
        fd = os.open(f"{folder}/{queue}", _O_NOTIFY)
    except OSError:  # No consumer waits.
        return
    try:
        os.write(fd, b"!")
    except OSError:  # The FIFO is full, so the consumers wake up.
        pass
    finally:
        os.close(fd)


class QueueFifos:
    """FIFOs of the queues that one connection consumes.

    `nudge` is thread-safe. All other methods are for one thread.
    """

    def __init__(self, folder: str, interval: float | None, used: bool) -> None:
        self._folder = folder
        self._used = used
        self._interval = interval
        self._pause = _FIRST_PAUSE_SECONDS
        self._fds: dict[str, int] = {}
        self._poll = select.poll()
        self._watched_count = 0
        self._nudge = Nudge()

    def add(self, queue: str) -> None:
        """Create the FIFO of a queue and wait for it."""
        self._watched_count += 1
        path = f"{self._folder}/{queue}"
        if not self._used:
            return
        try:
            with contextlib.suppress(FileExistsError):
                os.mkfifo(path, 0o600)
            fd = os.open(path, _O_WAIT)
            if stat.S_ISFIFO(os.fstat(fd).st_mode):
                self._fds[queue] = fd
                self._poll.register(fd, select.POLLIN)
            else:
                os.close(fd)
        except OSError:  # Without a FIFO the queue is polled more often.
            pass

    def discard(self, queue: str) -> None:
        self._watched_count -= 1
        fd = self._fds.pop(queue, -1)
        if fd >= 0:
            self._poll.unregister(fd)
            os.close(fd)

    def reset_pause(self) -> None:
        """Reset the pause, because a message has arrived."""
        self._pause = _FIRST_PAUSE_SECONDS

    def pause(self) -> float:
        """Return the seconds after which the queues must be polled even without a wake-up.

        If a queue has no FIFO, the pause doubles with each call until `reset_pause`.
        """
        if len(self._fds) == self._watched_count:
            return self._interval or 1.0
        pause = min(self._pause, self._interval or 0.1)
        self._pause = pause * 2
        return pause

    def is_notified(self) -> bool:
        """Whether a wake-up is pending."""
        return bool(self._fds) and bool(self._poll.poll(0))

    def consume(self, queue: str) -> bool:
        """Consume the wake-up of a queue. If this returns True, the caller must poll the queue."""
        fd = self._fds.get(queue, -1)
        try:
            return fd >= 0 and bool(os.read(fd, 65536))
        except BlockingIOError:
            return False

    def wait(self, timeout: float, queues: Iterable[str]) -> list[str]:
        """Wait for a wake-up of these queues, a `nudge`, or the timeout in seconds.

        :returns: the queues whose wake-up this call consumed.
        """
        waiting = select.poll()
        waiting.register(self._nudge.fd, select.POLLIN)
        for queue in queues:
            if queue in self._fds:
                waiting.register(self._fds[queue], select.POLLIN)
        ready = {fd for fd, _ in waiting.poll(max(0.0, timeout * 1000))}
        if self._nudge.fd in ready:
            self._nudge.clear()
        if not ready:
            self._recreate_removed()
        return [queue for queue in queues if self._fds.get(queue) in ready and self.consume(queue)]

    def _recreate_removed(self) -> None:
        for queue, fd in tuple(self._fds.items()):
            try:
                if os.stat(f"{self._folder}/{queue}").st_ino == os.fstat(fd).st_ino:
                    continue
            except OSError:
                pass
            self.discard(queue)
            self.add(queue)

    def nudge(self) -> None:
        """End a `wait`. Thread-safe."""
        self._nudge.notify()

    def close(self) -> None:
        for queue in tuple(self._fds):
            self.discard(queue)
        self._nudge.close()
