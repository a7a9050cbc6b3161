"""Plug-ins: objects that installed packages offer under an entry point group and a kind.

What is installed is looked up once for each state of `sys.path`: reading the metadata of all
packages takes milliseconds.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any, Final

from wbengine import _names, exceptions

#: The groups of entry points that wbengine looks at.
GROUPS: Final = (
    "wbengine.engines",
    "wbengine.persistence",
    "wbengine.jobboards",
    "wbengine.conductors",
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


def load(
    what: str,
    kind: str,
    known: Mapping[str, str],
    namespace: str,
    own: str,
    meant: Mapping[str, str] | None = None,
) -> Any:
    """The class of a kind: of those that are always there (`known`: dotted names), or a plug-in.

    `own` is the group in which the kinds that are always there come first; in another `namespace`
    its plug-ins do.  `meant`: names of other people's for kinds there are.

    :raises NotFound: there is no such kind; names `what` it is, those there are, and the nearest.
    """
    if kind in known and namespace == own:
        return _names.load(known[kind])
    try:
        return find(namespace, kind)
    except exceptions.NotFound as error:
        if kind in known:
            return _names.load(known[kind])
        there = sorted({*known, *names(namespace)})
        near = (meant or {}).get(kind.lower())
        hint = f" (did you mean {near!r}?)" if near else _names.hint(kind, there)
        raise exceptions.NotFound(
            f"No {what} of kind {kind!r}{hint}; known kinds: {', '.join(there)}"
        ) from error


@functools.lru_cache(maxsize=64)
def _offers(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    return tuple(metadata.entry_points(group=group))
