"""`backends.directory`, under the names that TaskFlow has."""

from __future__ import annotations

from wbengine.persistence.backends.directory import DirectoryBackend as DirBackend
from wbengine.persistence.backends.directory import DirectoryConnection as Connection

__all__ = ["Connection", "DirBackend"]
