"""Tables as reStructuredText, and the places of a page that they are written into."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

#: A place on a page is between two comments, which name it.
_PLACE = re.compile(
    r"^\.\. begin figures: (?P<name>[a-z-]+)\n(?P<text>.*?)^\.\. end figures: (?P=name)$",
    re.MULTILINE | re.DOTALL,
)
NOTHING = "--"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """The lines of a simple table: columns are as wide as what is in them."""
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
    """The lines of a list table, for cells of whole sentences; `widths` are in percent."""
    yield ".. list-table::"
    yield "   :header-rows: 1"
    yield f"   :widths: {' '.join(map(str, widths))}"
    yield ""
    for row in (head, *rows):
        for number, cell in enumerate(row):
            yield f"   {'*' if number == 0 else ' '} - {cell}".rstrip()


def places(page: str) -> dict[str, str]:
    """What is written at each place of a page."""
    return {found["name"]: found["text"].strip("\n") for found in _PLACE.finditer(page)}


def written(page: str, texts: Mapping[str, str]) -> str:
    """The page with these texts at their places; what there is no text for, stays as it is.

    :raises KeyError: when it has no place of that name.
    """
    missing = {*texts} - {*places(page)}
    if missing:
        raise KeyError(f"the page has no place for {', '.join(sorted(missing))}")

    def fill(found: re.Match[str]) -> str:
        name = found["name"]
        text = texts.get(name, found["text"].strip("\n"))
        return f".. begin figures: {name}\n\n{text}\n\n.. end figures: {name}"

    return _PLACE.sub(fill, page)
