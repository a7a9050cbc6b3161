"""What a finished run leaves to tell: how the flow ran, and what came out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from wbengine.views.flow import FlowView


@dataclass(frozen=True, slots=True)
class Record:
    """One run on an engine of a kind; it took the flow so many `seconds`."""

    engine: str
    seconds: float
    view: FlowView
    census: dict[str, Any]
