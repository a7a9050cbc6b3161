"""Which queues a routing key reaches.

Exact keys are found in a dict; wildcard bindings (`*` is one word, `#` any number of words, words
are separated by dots) are matched word by word.  Nothing here compiles a regular expression, so a
pattern chosen by a peer cannot be made slow: one match costs at most words x pattern words.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

#: Remembered routing keys per table; keys chosen by peers must not grow memory without end.
_MEMO_LIMIT = 4096


def is_wild(pattern: str) -> bool:
    """Whether a binding key holds a wildcard word."""
    return "*" in pattern or "#" in pattern


def matches(pattern: Sequence[str], words: Sequence[str]) -> bool:
    """Match the words of a routing key against the words of a topic pattern, in O(len x len)."""
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


class Table:
    """The bindings of one exchange; never changes, a changed exchange gets a new table."""

    __slots__ = ("_exact", "_memo", "_wild")

    def __init__(self, bindings: Iterable[tuple[str, str]]) -> None:
        """`bindings` are (key, queue) pairs, in the order in which the queues are to be served."""
        self._exact: dict[str, dict[str, None]] = {}
        self._wild: list[tuple[list[str], str]] = []
        self._memo: dict[str, tuple[str, ...]] = {}
        for key, queue in bindings:
            if is_wild(key):
                self._wild.append((key.split("."), queue))
            else:
                self._exact.setdefault(key, {})[queue] = None

    def route(self, key: str) -> tuple[str, ...]:
        """The queues that get a message with this routing key, each of them once."""
        found = self._memo.get(key)
        if found is None:
            queues = dict(self._exact.get(key, ()))
            if self._wild:
                words = key.split(".")
                for pattern, queue in self._wild:
                    if queue not in queues and matches(pattern, words):
                        queues[queue] = None
            if len(self._memo) >= _MEMO_LIMIT:
                self._memo.clear()
            found = self._memo[key] = tuple(queues)
        return found
