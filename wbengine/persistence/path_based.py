"""Bases of backends, written for TaskFlow, that keep each record under a path."""

from __future__ import annotations

import abc
from typing import Any, ClassVar

from wbengine.persistence import base

__all__ = ["PathBasedBackend", "PathBasedConnection"]


class PathBasedBackend(base.Backend):
    """A backend whose option `path` says below which path everything is."""

    DEFAULT_PATH: ClassVar[str | None] = None

    @property
    def path(self) -> str | None:
        return self._conf.get("path") or self.DEFAULT_PATH


class PathBasedConnection(base.Connection):
    """A connection that knows the paths of books, flow details and atom details."""

    def __init__(self, backend: PathBasedBackend) -> None:
        self._backend = backend

    @abc.abstractmethod
    def _join_path(self, *parts: Any) -> str:
        """One path of several parts."""

    @property
    def backend(self) -> PathBasedBackend:
        return self._backend

    @property
    def book_path(self) -> str:
        return self._join_path(self._backend.path, "books")

    @property
    def flow_path(self) -> str:
        return self._join_path(self._backend.path, "flow_details")

    @property
    def atom_path(self) -> str:
        return self._join_path(self._backend.path, "atom_details")
