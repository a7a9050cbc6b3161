"""Names of hosts in addresses that several hosts compare."""

from __future__ import annotations

import socket
from typing import Final

__all__ = ["host_name"]

#: Host names that every host uses for itself.
_LOOPBACKS: Final = ("localhost", "127.0.0.1", "::1")


def host_name(host: str) -> str:
    """Return the name of a host as other hosts know it, also for localhost."""
    return socket.gethostname() if host in _LOOPBACKS else host
