"""Tables as reStructuredText, and places in a page where they are inserted."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

#: A place is between two comments that contain its name.
_PLACE = re.compile(
    r"^\.\. begin figures: (?P<name>[a-z-]+)\n(?P<text>.*?)^\.\. end figures: (?P=name)$",
    re.MULTILINE | re.DOTALL,
)
NOTHING = "--"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Yield the lines of a simple table whose columns fit their content."""
    all_rows = [[cell or NOTHING for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*all_rows, strict=True)]
    rule = "  ".join("=" * width for width in widths)
    yield rule
    for number, row in enumerate(all_rows):
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()
        if number in (0, len(all_rows) - 1):
            yield rule


def columns(
    head: Sequence[str], rows: Iterable[Sequence[str]], widths: Sequence[int]
) -> Iterator[str]:
    """Yield the lines of a list table for cells with sentences; `widths` are in percent."""
    yield ".. list-table::"
    yield "   :header-rows: 1"
    yield f"   :widths: {' '.join(map(str, widths))}"
    yield ""
    for row in (head, *rows):
        for number, cell in enumerate(row):
            yield f"   {'*' if number == 0 else ' '} - {cell}".rstrip()


def places(page: str) -> dict[str, str]:
    """Return the current text of each place of a page."""
    return {match["name"]: match["text"].strip("\n") for match in _PLACE.finditer(page)}


def with_texts(page: str, texts: Mapping[str, str]) -> str:
    """Return the page with new texts at their places. Other places are unchanged.

    :raises KeyError: if the page does not have a place.
    """
    missing = {*texts} - {*places(page)}
    if missing:
        raise KeyError(f"the page has no place for {', '.join(sorted(missing))}")

    def fill(match: re.Match[str]) -> str:
        name = match["name"]
        text = texts.get(name, match["text"].strip("\n"))
        return f".. begin figures: {name}\n\n{text}\n\n.. end figures: {name}"

    return _PLACE.sub(fill, page)
