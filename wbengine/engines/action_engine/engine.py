"""The engine classes under TaskFlow's names."""

from __future__ import annotations

from wbengine.engines._local import ParallelActionEngine, SerialActionEngine
from wbengine.engines.base import Engine as ActionEngine

__all__ = ["ActionEngine", "ParallelActionEngine", "SerialActionEngine"]
