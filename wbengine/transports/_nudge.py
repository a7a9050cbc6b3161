"""A nudge: what any thread gives to one that waits for file descriptors."""

from __future__ import annotations

import os


class Nudge:
    """`fd` can be read from when somebody called `give`, until `take`."""

    __slots__ = ("_given", "_hand", "fd")

    def __init__(self) -> None:
        self.fd, self._hand = os.pipe()
        os.set_blocking(self.fd, False)
        os.set_blocking(self._hand, False)
        self._given = False

    def give(self) -> None:
        """End a wait, or the next one; from any thread."""
        if not self._given:
            self._given = True
            try:
                os.write(self._hand, b"!")
            except OSError:  # full: it is there anyway; closed: nobody waits
                pass

    def take(self) -> None:
        """It was noticed; what it announced is looked at after this."""
        try:
            os.read(self.fd, 4096)
        except BlockingIOError:
            pass
        # From here on `give` writes again.
        self._given = False

    def close(self) -> None:
        """Free the file descriptors; idempotent."""
        fd, hand, self.fd, self._hand = self.fd, self._hand, -1, -1
        for descriptor in (fd, hand):
            if descriptor >= 0:
                os.close(descriptor)
