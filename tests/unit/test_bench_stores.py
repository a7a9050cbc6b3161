"""What `tools/bench --stores` measures, and how it judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tools import _stores


def test_a_flow_is_measured_and_resumed(tmp_path: Path) -> None:
    what: dict[str, Any] = {
        "package": "wbengine",
        "conf": {"connection": "dir", "path": str(tmp_path)},
        "shape": "chain",
        "tasks": 3,
        "options": {"durability": "batch"},
    }
    assert _stores.measure(what).keys() == {"load", "run", "all", "peak_mb"}
    assert _stores.measure({**what, "again": True}).keys() == {"read", "resume", "peak_mb"}
