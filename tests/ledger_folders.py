"""What is in a ledger that is a folder."""

from __future__ import annotations

import contextlib
from pathlib import Path


def rows(folder: Path, state: str | None = None) -> list[str]:
    """The ids of its rows (in one state), and of those that were not dropped to the end."""
    if not folder.is_dir():
        return []
    # Not on top: tools that look on from outside need nothing of what this needs.
    from wbengine.engines.worker_based import ledger as ledgers

    with contextlib.closing(ledgers.open_ledger(f"dir://{folder}", result_ttl=None)) as ledger:
        found = sorted(ledger.ids())
        if state is None:
            return found
        known = [ledger.state(id) for id in found]
        return [row.id for row in known if row is not None and row.state == state]


def left(folder: Path, beats: bool = True) -> list[str]:
    """What flows that came to their end must not leave: rows, and beats of workers that ended."""
    found = [f"row of {id}" for id in rows(folder)]
    if beats:
        found += [f"beats/{path.name}" for path in (folder / "beats").glob("*")]
    return found
