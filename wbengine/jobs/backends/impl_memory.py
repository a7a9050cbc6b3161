"""A job board in the memory of one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wbengine._configuration import named_options
from wbengine.jobs.backends import impl_sql
from wbengine.persistence import base, models

__all__ = ["MemoryJobBoard"]


class MemoryJobBoard(impl_sql.SQLJobBoard):
    """A board for users of this object only: an SQLite database in memory.

    Closing it deletes all jobs. It has no options.
    """

    def __init__(
        self,
        name: str,
        conf: Mapping[str, Any] | None = None,
        persistence: base.Backend | None = None,
    ) -> None:
        named_options.check_known("A job board in memory", conf or (), ())
        super().__init__(name, {"connection": "sqlite://"}, persistence)
        self._address = f"memory:{models.new_uuid()}"

    @property
    def address(self) -> str:
        return self._address
