"""Routing: the queues for a routing key.

Exact keys are looked up in a dict. Wildcard bindings (`*` is one word, `#` any number of words,
separated by dots) are matched word by word, at a cost of at most words x pattern words. A regular
expression from a peer could be slow.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Maximum number of cached routing keys for each table, because peers choose the keys.
_MAX_CACHED_KEYS = 4096


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match the words of a routing key with those of a topic pattern, in O(len x len)."""
    p = w = 0
    back_p = back_w = -1
    while w < len(words):
        if p < len(pattern) and pattern[p] == "#":
            back_p, back_w = p, w
            p += 1
        elif p < len(pattern) and (pattern[p] == "*" or pattern[p] == words[w]):
            p += 1
            w += 1
        elif back_p >= 0:
            back_w += 1
            p, w = back_p + 1, back_w
        else:
            return False
    return all(word == "#" for word in pattern[p:])


class RoutingTable:
    """The bindings of one exchange, to find the queues of a message by its routing key.

    Immutable: a changed exchange gets a new table.
    """

    __slots__ = ("_exact", "_memo", "_wild")

    def __init__(self, bindings: Iterable[tuple[str, str]]) -> None:
        """Create a table from (key, queue) pairs, in the order in which the queues are served."""
        self._exact: dict[str, dict[str, None]] = {}
        self._wild: list[tuple[list[str], str]] = []
        self._memo: dict[str, tuple[str, ...]] = {}
        for key, queue in bindings:
            if "*" in key or "#" in key:
                self._wild.append((key.split("."), queue))
            else:
                self._exact.setdefault(key, {})[queue] = None

    def route(self, key: str) -> tuple[str, ...]:
        """Return the queues that receive a message with this routing key, without duplicates."""
        cached = self._memo.get(key)
        if cached is None:
            queues = dict(self._exact.get(key, ()))
            if self._wild:
                words = key.split(".")
                for pattern, queue in self._wild:
                    if queue not in queues and matches(pattern, words):
                        queues[queue] = None
            if len(self._memo) >= _MAX_CACHED_KEYS:
                self._memo.clear()
            cached = self._memo[key] = tuple(queues)
        return cached


class Routes:
    """The queues and bindings of a broker at one `version`. Immutable.

    :param bindings: (queue, exchange, key).
    """

    def __init__(
        self, version: int | str, queues: Iterable[str], bindings: Iterable[tuple[str, str, str]]
    ) -> None:
        self.version = version
        self._queues = frozenset(queues)
        bound: dict[str, list[tuple[str, str]]] = {}
        for queue, exchange, key in bindings:
            bound.setdefault(exchange, []).append((key, queue))
        self._tables = {exchange: RoutingTable(pairs) for exchange, pairs in bound.items()}

    def find(self, exchange: str, key: str) -> Sequence[str]:
        """Return the existing queues for a key. If `exchange` is '', the key is a queue."""
        if not exchange:
            return (key,) if key in self._queues else ()
        table = self._tables.get(exchange)
        if table is None:
            return ()
        return [queue for queue in table.route(key) if queue in self._queues]
