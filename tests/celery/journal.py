"""Lines that tasks wrote to files."""

from __future__ import annotations

from pathlib import Path


def lines(path: Path | str) -> list[str]:
    file = Path(path)
    return sorted(file.read_text(encoding="utf-8").splitlines()) if file.exists() else []
