"""Lines that tasks wrote to files."""

from __future__ import annotations

from pathlib import Path


def lines(path: Path | str) -> list[str]:
    found = Path(path)
    return sorted(found.read_text(encoding="utf-8").splitlines()) if found.exists() else []
