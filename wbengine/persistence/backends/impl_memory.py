"""TaskFlow's names for `backends.memory`."""

from __future__ import annotations

from wbengine.persistence.backends._memory import MemoryBackend as MemoryBackend
from wbengine.persistence.backends._memory import MemoryConnection as Connection

__all__ = ["Connection", "MemoryBackend"]
