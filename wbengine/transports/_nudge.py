"""Wake-up of a thread that waits for file descriptors, by any other thread."""

from __future__ import annotations

import os
import select


class Nudge:
    """Pipe whose `fd` is readable after `notify` and until `clear`."""

    __slots__ = ("_notified", "_write_fd", "fd")

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._write_fd, False)
        self._notified = False

    def notify(self) -> None:
        """End the current wait, or the next one. Thread-safe."""
        if not self._notified:
            self._notified = True
            try:
                os.write(self._write_fd, b"!")
            except OSError:  # Full: a wake-up is pending. Closed: no thread waits.
                pass

    def wait(self, seconds: float) -> bool:
        """Wait until `notify` is called, or the time has passed, and `clear`.

        Return whether it was called.
        """
        poll = select.poll()  # `select` does not support large descriptors.
        poll.register(self.fd, select.POLLIN)
        notified = bool(poll.poll(seconds * 1000))
        if notified:
            self.clear()
        return notified

    def clear(self) -> None:
        """Reset the wake-up. The caller must check for work after this call, not before."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        # After this, `notify` writes again.
        self._notified = False

    def close(self) -> None:
        fd, hand, self.fd, self._write_fd = self.fd, self._write_fd, -1, -1
        for descriptor in (fd, hand):
            if descriptor >= 0:
                os.close(descriptor)
