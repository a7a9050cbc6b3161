"""TaskFlow's names for `backends.memory`."""

from __future__ import annotations

from wbengine.persistence.backends.memory import MemoryBackend as MemoryBackend
from wbengine.persistence.backends.memory import MemoryConnection as Connection

__all__ = ["Connection", "MemoryBackend"]
