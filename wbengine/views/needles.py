"""Secrets that are known, and wherever they occur in a text."""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib import parse

__all__ = ["SHORTEST", "Needles"]

#: Shorter secrets are masked under their own keys only: they are part of too many words.
SHORTEST: Final = 6
#: So much of a secret that was cut off gives it away.
_START: Final = 4
#: So many digits a number has to have.
_DIGITS: Final = 6
_LINE: Final = 8
_HARMLESS: Final = frozenset({"none", "null", "true", "false"})
_CUT: Final = re.compile(r"\.\.\.|…")


class Needles:
    """Texts that must not be shown, in all the forms in which they are usually written.

    Finding them costs what the text is long, however many there are.
    """

    __slots__ = ("_by_end", "_by_start")

    def __init__(self, secrets: Iterable[Any] = ()) -> None:
        # The first characters -> what begins so, by its length, the longest first.
        self._by_start: dict[str, _Forms] = {}
        starts: dict[str, set[str]] = {}
        for secret in secrets:
            for form in _forms(secret):
                starts.setdefault(form[:_START], set()).add(form)
        for start, forms in starts.items():
            self._by_start[start] = _by_length(forms)
        # The last characters -> what ends so; made when a text was cut off.
        self._by_end: dict[str, set[str]] | None = None

    def __bool__(self) -> bool:
        return bool(self._by_start)

    def __or__(self, other: Needles) -> Needles:
        """Those of both."""
        if not other or other is self:
            return self
        if not self:
            return other
        both = Needles()
        both._by_start = dict(self._by_start)
        for start, forms in other._by_start.items():
            mine = both._by_start.get(start)
            if mine is not None and mine != forms:
                forms = _by_length(form for _, each in (*mine, *forms) for form in each)
            both._by_start[start] = forms
        return both

    def hide(self, text: str, mask: str) -> str:
        """`text` with `mask` in place of each; also of what is left of one beside dots."""
        starts = self._by_start
        if not starts or len(text) < _START:
            return text
        cuts = list(_CUT.finditer(text))
        if not cuts and len(starts) < 64 and not any(start in text for start in starts):
            return text
        found, kept, at, number = [], 0, 0, 0
        last = len(text) - _START
        while at <= last:
            while number < len(cuts) and cuts[number].end() < at:
                number += 1
            cut = cuts[number] if number < len(cuts) else None
            length = self._length_at(text, at, cut)
            if length:
                found += [text[kept:at], mask]
                at += length
                kept = at
            else:
                at += 1
        return "".join([*found, text[kept:]]) if found else text

    def _length_at(self, text: str, at: int, cut: re.Match[str] | None) -> int:
        """How long what must not be shown is that begins at `at`; 0: nothing does.

        `cut` are the next dots, or those that end at `at`: what is before them may be the beginning
        of a secret, what is behind them the end of one.
        """
        forms = self._by_start.get(text[at : at + _START], ())
        for length, known in forms:
            if text[at : at + length] in known:
                return length
        if cut is None:
            return 0
        if cut.end() == at:
            return self._end_at(text, at)
        rest = text[at : cut.start()]
        if len(rest) >= _START and any(
            form.startswith(rest)
            for length, known in forms
            if length >= len(rest)
            for form in known
        ):
            return len(rest)
        return 0

    def _end_at(self, text: str, at: int) -> int:
        """How much of the end of a secret is at `at`."""
        if self._by_end is None:
            ends: dict[str, set[str]] = {}
            for forms in self._by_start.values():
                for _, known in forms:
                    for form in known:
                        ends.setdefault(form[-_START:], set()).add(form)
            self._by_end = ends
        longest = max(forms[0][0] for forms in self._by_start.values())
        for end in range(min(len(text), at + longest), at + _START - 1, -1):
            rest = text[at:end]
            if any(form.endswith(rest) for form in self._by_end.get(rest[-_START:], ())):
                return len(rest)
        return 0


_Forms = tuple[tuple[int, frozenset[str]], ...]


def _by_length(forms: Iterable[str]) -> _Forms:
    lengths: dict[int, set[str]] = {}
    for form in forms:
        lengths.setdefault(len(form), set()).add(form)
    return tuple((length, frozenset(lengths[length])) for length in sorted(lengths, reverse=True))


def _forms(secret: Any) -> Iterator[str]:
    """How a secret may be written."""
    if isinstance(secret, int | float):
        if len(str(secret)) >= _DIGITS:
            yield str(secret)
        return
    text = str(secret).strip()
    if len(text) < SHORTEST or text.lower() in _HARMLESS:
        return
    escaped = json.dumps(text)[1:-1]
    raw = text.encode("utf-8", "replace")
    yield from {
        text,
        str(secret),
        repr(text)[1:-1],
        repr(raw)[2:-1],
        escaped,
        json.dumps(text, ensure_ascii=False)[1:-1],
        json.dumps(escaped)[1:-1],
        " ".join(text.split()),
        parse.quote(text),
        parse.quote(text, safe=""),
        parse.quote_plus(text),
        parse.unquote(text) if len(parse.unquote(text)) >= SHORTEST else text,
        base64.b64encode(raw).decode(),
    }
    for line in text.splitlines():
        if len(line.strip()) >= _LINE:
            yield line.strip()
