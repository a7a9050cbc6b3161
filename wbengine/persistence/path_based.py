"""TaskFlow's names of the base classes of backends and connections."""

from __future__ import annotations

from wbengine.persistence.base import Backend as PathBasedBackend
from wbengine.persistence.base import Connection as PathBasedConnection

__all__ = ["PathBasedBackend", "PathBasedConnection"]
