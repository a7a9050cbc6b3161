"""Plug-ins: objects that installed packages provide under an entry point group and a kind.

Reading the metadata of all packages takes milliseconds, so the result is cached for each value of
`sys.path`.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Container, Mapping
from typing import TYPE_CHECKING, Any, Final

from wbengine import exceptions
from wbengine._introspection import object_names

if TYPE_CHECKING:
    from importlib import metadata

GROUPS: Final = (
    "wbengine.engines",
    "wbengine.transports",
    "wbengine.persistence",
    "wbengine.jobboards",
    "wbengine.conductors",
    "wbengine.executors",
    "wbengine.codecs",
    "wbengine.commands",
)


def names(group: str) -> list[str]:
    """Return the kinds of plug-ins in `group`, sorted."""
    return sorted({point.name for point in _entry_points(group, tuple(sys.path))})


def find(group: str, kind: str) -> Any:
    """Load the first plug-in of `group` with this kind.

    :raises NotFound: if the kind is unknown; the message contains all kinds and the closest match.

    An error during the import of the plug-in propagates.
    """
    for point in _entry_points(group, tuple(sys.path)):
        if point.name == kind:
            return point.load()
    plugin_names = names(group)
    offer = ", ".join(plugin_names) if plugin_names else "nothing is installed"
    raise exceptions.NotFound(
        f"{group}: unknown name {kind!r}{object_names.hint(str(kind), plugin_names)};"
        f" available: {offer}"
    )


def kind_of(scheme: str, without_driver: Container[str]) -> str:
    """Return the kind in the scheme of a URL, where a driver may follow, as in 'mysql+pymysql'."""
    kind = scheme.partition("+")[0]
    return scheme if kind in without_driver else kind


def load(
    what: str,
    kind: str,
    known: Mapping[str, str],
    namespace: str,
    own_namespace: str,
    aliases: Mapping[str, str] | None = None,
) -> Any:
    """Return the class of a built-in kind (`known`: dotted names) or of a plug-in.

    :param what: the subject of the error message.
    :param own: the group in which built-in kinds take precedence. In any other `namespace`,
        plug-ins take precedence.
    :param meant: kinds of wbengine by their names in other projects, for suggestions.
    :raises NotFound: if the kind is unknown; the message contains all kinds and the closest match.
    """
    if kind in known and namespace == own_namespace:
        return object_names.load(known[kind])
    try:
        return find(namespace, kind)
    except exceptions.NotFound as error:
        if kind in known:
            return object_names.load(known[kind])
        available = sorted({*known, *names(namespace)})
        first = kind.lower().partition("+")[0]
        near = (aliases or {}).get(first, first)
        hint = object_names.hint(near, available) or object_names.hint(kind, available)
        raise exceptions.NotFound(
            f"Unknown kind of {what} {kind!r}{hint}; known kinds: {', '.join(available)}"
        ) from error


@functools.lru_cache(maxsize=64)
def _entry_points(group: str, path: tuple[str, ...]) -> tuple[metadata.EntryPoint, ...]:
    from importlib import metadata  # Imported here, because it is slow and rarely needed.

    return tuple(metadata.entry_points(group=group))
