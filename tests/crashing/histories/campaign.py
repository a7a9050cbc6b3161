"""Histories of several stores, each on a private server or in a folder."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from tests.crashing.histories import recording
from tests.support import brokers, servers

_MAX_SHOWN: Final = 3


def run(histories: int, kinds: Sequence[str], seed: int, folder: Path) -> int:
    """Record histories of each kind, print a table, and return the number of violations."""
    problems = 0
    for kind in kinds:
        began = time.monotonic()
        with _place(kind, folder) as (url, ledger):
            logs = folder / f"{kind}-histories"
            figures = recording.run(url, ledger, histories, seed, str(logs))
        violations, errors = figures["violations"], figures["errors"]
        problems += len(violations)
        print(
            f"{kind:<12}{figures['histories']:>6} histories of {figures['rows']} rows,"
            f" {figures['operations']} operations, {figures['unknown']} without a reply,"
            f" {figures['kills']} kills, {len(errors)} failed calls,"
            f" {len(violations)} violations, {time.monotonic() - began:.0f} s",
            flush=True,
        )
        for text in (*sorted(set(errors))[:_MAX_SHOWN], *violations):
            print(text)
    print(f"{histories * len(kinds)} histories, {problems} problems")
    return problems


@contextlib.contextmanager
def _place(kind: str, folder: Path) -> Iterator[tuple[str, str | None]]:
    """Yield the URL of a broker, and that of a separate ledger or None."""
    with contextlib.ExitStack() as stack:
        if kind == "memory":
            yield "memory://histories", None
        elif kind == "filesystem":
            yield f"filesystem://{folder}/{kind}", None
        elif kind == "redis":
            yield stack.enter_context(brokers.redis()).url(), None
        elif kind == "postgresql":
            yield stack.enter_context(stack.enter_context(servers.postgresql()).database()), None
        else:
            url = stack.enter_context(stack.enter_context(servers.mariadb()).database())
            yield (url, None) if kind == "mysql" else (f"filesystem://{folder}/{kind}", url)
