"""What is written into and about boxes, as it may stand in SVG and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Final

from rich.text import Text

from wbengine.drawing import styles
from wbengine.types import outline as outlines
from wbengine.views import formatting
from wbengine.views.atoms import AtomView
from wbengine.views.structure import NodeView

__all__ = ["by_number", "clean", "counted", "escaped", "line", "shortened", "state_of", "tell"]

#: Control characters, what XML does not allow, and what UTF-8 cannot say.
_FORBIDDEN: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: What XML allows, and a terminal obeys: the returning of the cursor, the direction of writing.
_OBEYED: Final = re.compile("[\r\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """`text` without control characters and what XML does not allow."""
    return _FORBIDDEN.sub("\ufffd", text)


def by_number(markup: str) -> str:
    """`markup` for a terminal too: a browser reads the same."""
    return _OBEYED.sub(lambda found: f"&#{ord(found[0])};", markup)


def escaped(text: str) -> str:
    """`text` for between tags and for attributes in double quotes, whatever is in it."""
    return by_number(clean(escape(text)))


def shortened(text: str, most: int) -> str:
    """At most `most` columns, in one line: its beginning and its end tell most."""
    text = " ".join(text.split()) if not text.isprintable() else text
    if len(text) <= most and (text.isascii() or Text(text).cell_len <= most):
        return text
    tail = most // 3
    return f"{_fitting(text, most - tail - 1)}…{_fitting(text[::-1], tail)[::-1]}"


def _fitting(text: str, columns: int) -> str:
    """As much of its beginning as fits."""
    if text.isascii():
        return text[:columns]
    found = Text(text)
    found.truncate(columns, overflow="crop")
    return found.plain


def counted(counts: Mapping[str, int]) -> str:
    """How many are in which state: `3 success, 1 failure`."""
    known = [state for state in styles.STATES if counts.get(state)]
    other = [state for state in counts if state not in styles.STATES and counts[state]]
    return ", ".join(f"{counts[state]:,} {styles.word(state)}" for state in known + other)


def line(box: NodeView) -> str:
    """What is said of a box below its name."""
    if not box.is_atom:
        return formatting.count(box.size, "atom")
    atom = box.atom
    if atom is None:
        return ""
    said = state_of(atom)
    if atom.runtime is not None and atom.state != "PENDING" and box.kind != outlines.RETRY:
        said += f" · {formatting.seconds(atom.runtime)}"
    elif atom.state == "RUNNING" and atom.progress:
        said += f" · {atom.progress:.0%}"
    if atom.executions > 1:
        said += f" · {_nth(atom.executions)} try"
    if atom.items:
        done = atom.items.get("SUCCESS", 0)
        said += f" · {done:,}/{sum(atom.items.values()):,}"
    return said


def state_of(atom: AtomView) -> str:
    """The word for its state; also that it failed before it was reverted, and that it is queued."""
    word = "queued" if atom.queued else styles.word(atom.state)
    return f"failed, {word}" if atom.failed_before else word


def _nth(number: int) -> str:
    tens = number % 100 // 10
    return f"{number}{'th' if tens == 1 else {1: 'st', 2: 'nd', 3: 'rd'}.get(number % 10, 'th')}"


def tell(box: NodeView) -> list[str]:
    """All that is said of a box when it is pointed at, line by line."""
    notes = [box.notes] if box.notes else []
    if not box.is_atom:
        what = "flow " if box.kind == outlines.FLOW else ""
        size = formatting.count(box.size, "atom")
        return [f"{what}{box.name}", f"{size}: {counted(box.atom_counts)}", *notes]
    task = [box.task] if box.task not in (None, box.name) else []
    known = [] if box.atom is None else _known(box.atom)
    return [f"{box.kind} {box.name}", *task, *notes, *known]


def _known(atom: AtomView) -> list[str]:
    found = [state_of(atom)]
    if atom.worker is not None and atom.worker != "local":
        found.append(f"on {atom.worker}")
    if atom.runtime is not None:
        found.append(f"took {formatting.seconds(atom.runtime)}")
    if formatting.nth(atom) > 1:
        found.append(f"attempt {formatting.nth(atom)}")
    if atom.items:
        found.append(f"items: {counted(atom.items)}")
    if atom.waiting:
        found.append(atom.waiting)
    failures = (atom.failure, atom.revert_failure)
    return [*found, *(shortened(each.line, 300) for each in failures if each is not None)]
