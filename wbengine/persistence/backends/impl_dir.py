"""TaskFlow's names for `backends.directory`."""

from __future__ import annotations

from wbengine.persistence.backends._directory import DirectoryBackend as DirBackend
from wbengine.persistence.backends._directory import DirectoryConnection as Connection

__all__ = ["Connection", "DirBackend"]
