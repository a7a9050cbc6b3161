"""Plug-ins: objects that installed packages offer under an entry point group and a kind.

What is installed is looked up once for each state of `sys.path`: reading the metadata of all
packages takes milliseconds.
"""

from __future__ import annotations

import functools
import sys
from importlib import metadata
from typing import Any, Final

from wbengine import _names, exceptions

#: The groups of entry points that wbengine looks at.
GROUPS: Final = (
    "wbengine.engines",
    "wbengine.persistence",
    "wbengine.executors",
    "wbengine.commands",
)


def names(group: str) -> list[str]:
    """The kinds on offer in `group`, sorted."""
    return sorted({point.name for point in _offers(group, tuple(sys.path))})


def find(group: str, kind: str) -> Any:
    """Load the object that `group` offers as `kind`.

    The first offer that loads wins.  A plug-in that fails to import raises its own error.

    :raises NotFound: nobody offers `kind`; names what is on offer, and the nearest of it.
    """
    for point in _offers(group, tuple(sys.path)):
        if point.name == kind:
            return point.load()
    known = names(group)
    offer = ", ".join(known) if known else "nothing is installed"
    raise exceptions.NotFound(
        f"{group} offers no {kind!r}{_names.hint(str(kind), known)}; available: {offer}"
    )


@functools.lru_cache(maxsize=64)
def _offers(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))
