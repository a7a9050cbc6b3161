"""Secrets that are known, and wherever they occur in a text."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator
from typing import Any, Final
from urllib import parse

__all__ = ["SHORTEST", "Needles"]

#: Shorter secrets are not looked for: they are part of too many words.
SHORTEST: Final = 4
#: So many digits a number has to have.
_DIGITS: Final = 6
_LINE: Final = 8
_HARMLESS: Final = frozenset({"none", "null", "true", "false"})
_CUT: Final = ("...", "…")


class Needles:
    """Texts that must not be shown, in all the forms in which they are usually written.

    Finding them costs what the text is long, however many there are.
    """

    __slots__ = ("_by_start",)

    def __init__(self, secrets: Iterable[Any] = ()) -> None:
        # The first characters -> what begins so, by its length, the longest first.
        self._by_start: dict[str, _Forms] = {}
        starts: dict[str, set[str]] = {}
        for secret in secrets:
            for form in _forms(secret):
                starts.setdefault(form[:SHORTEST], set()).add(form)
        for start, forms in starts.items():
            self._by_start[start] = _by_length(forms)

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
        """`text` with `mask` in place of each; also where its end was cut off."""
        starts = self._by_start
        if not starts or len(text) < SHORTEST:
            return text
        if len(starts) < 64 and not any(start in text for start in starts):
            return text
        found, kept, at = [], 0, 0
        end = _whole(text)
        last = len(text) - SHORTEST
        while at <= last:
            forms = starts.get(text[at : at + SHORTEST])
            length = 0 if forms is None else _length_at(text, at, end, forms)
            if length:
                found += [text[kept:at], mask]
                at += length
                kept = at
            else:
                at += 1
        return "".join([*found, text[kept:]]) if found else text


_Forms = tuple[tuple[int, frozenset[str]], ...]


def _by_length(forms: Iterable[str]) -> _Forms:
    lengths: dict[int, set[str]] = {}
    for form in forms:
        lengths.setdefault(len(form), set()).add(form)
    return tuple((length, frozenset(lengths[length])) for length in sorted(lengths, reverse=True))


def _length_at(text: str, at: int, end: int, forms: _Forms) -> int:
    """How long the one is that begins at `at`; 0 if none does.  `end`: what follows was cut off."""
    for length, known in forms:
        if text[at : at + length] in known:
            return length
    if end < len(text) and end - at >= SHORTEST:
        rest = text[at:end]
        if any(form.startswith(rest) for _, known in forms for form in known):
            return len(rest)
    return 0


def _whole(text: str) -> int:
    """Where the dots begin that say that something was cut off; the length if there are none."""
    for cut in _CUT:
        if text.endswith(cut):
            return len(text) - len(cut)
    return len(text)


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
