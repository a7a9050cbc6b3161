"""The engine classes under TaskFlow's names."""

from __future__ import annotations

from wbengine.engines.base import Engine as ActionEngine
from wbengine.engines.local import ParallelActionEngine, SerialActionEngine

__all__ = ["ActionEngine", "ParallelActionEngine", "SerialActionEngine"]
