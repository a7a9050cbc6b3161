"""Signatures that are the callbacks of each other, one inside the other, and a flat list of them.

So version 1 writes a chain: three levels for each task.  Nothing here calls itself.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["Flat", "flat", "nested"]

#: Each signature without its callbacks, and where those are in the list: after it.
Flat = list[tuple[dict[str, Any], list[int] | None]]


def flat(signatures: Sequence[Mapping[str, Any]]) -> Flat:
    """The signatures of a list, first, and then those that are linked to them."""
    found: Flat = []
    waiting: list[Any] = list(signatures)
    at = 0
    while at < len(waiting):
        one = dict(waiting[at])
        at += 1
        options = one.get("options")
        links = options.get("link") if isinstance(options, Mapping) else None
        if not (isinstance(links, list | tuple) and all(isinstance(x, Mapping) for x in links)):
            found.append((one, None))
            continue
        one["options"] = {**options, "link": ()}  # type: ignore[dict-item]
        found.append((one, list(range(len(waiting), len(waiting) + len(links)))))
        waiting.extend(links)
    return found


def nested(signatures: Flat, count: int) -> list[dict[str, Any]]:
    """The first `count` of a flat list, with all that is linked to them inside."""
    for one, links in reversed(signatures):
        if links is not None:
            one["options"] = {**one["options"], "link": [signatures[at][0] for at in links]}
    return [one for one, _ in signatures[:count]]
