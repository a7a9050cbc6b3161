"""A transport inside this process whose broker has no rows, as that of a plug-in."""

from __future__ import annotations

from typing import Any, Final

from wbengine.transports._kinds import Target
from wbengine.transports._memory.memory_broker import MemoryKind

#: Scheme of its URLs.
NAME: Final = "rowless"


class RowlessKind(MemoryKind):
    name = NAME
    ledger = None
    has_rows = False

    def resolve(
        self, url: str | None, transport: Any, options: dict[str, Any], exchange: str | None
    ) -> Target:
        hub = (url or "").replace(f"{NAME}:", "memory:")
        return super().resolve(hub, transport, options, exchange)


KIND: Final = RowlessKind()
