"""Names as they may stand in SVG and HTML, whatever is in them."""

from __future__ import annotations

from html import escape
from typing import Final

__all__ = ["text"]

#: What XML does not allow, and what UTF-8 cannot say.
_BAD: Final = {
    **{number: "\ufffd" for number in range(32) if number not in (9, 10, 13)},
    **dict.fromkeys((0x7F, 0xFFFE, 0xFFFF), "\ufffd"),
    **dict.fromkeys(range(0xD800, 0xE000), "\ufffd"),
}


def text(said: str) -> str:
    """`said`, for between tags and for attributes in double quotes."""
    return escape(said if said.isascii() and said.isprintable() else said.translate(_BAD))
