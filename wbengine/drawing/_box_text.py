"""Texts in and about boxes, escaped for SVG and HTML."""

from __future__ import annotations

import re
from collections.abc import Mapping
from html import escape
from typing import Final

from rich.text import Text

from wbengine.drawing import _styles
from wbengine.types import _outline as outlines
from wbengine.views import _formatting
from wbengine.views._atoms import AtomView
from wbengine.views._structure import GROUP, WORKFLOW, NodeView

__all__ = [
    "with_references",
    "clean",
    "clean_markup",
    "counted",
    "escaped",
    "line",
    "shortened",
    "state_of",
    "tooltip",
]

#: Control characters, and characters that XML or UTF-8 does not allow.
_FORBIDDEN: Final = re.compile("[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
#: Characters that XML allows but that control a terminal: carriage return, writing direction.
_TERMINAL_CONTROLS: Final = re.compile("[\r\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def clean(text: str) -> str:
    """Replace control characters and characters that XML does not allow."""
    return _FORBIDDEN.sub("\ufffd", text)


def with_references(markup: str) -> str:
    """Replace characters that control a terminal by references that browsers display equally."""
    return _TERMINAL_CONTROLS.sub(lambda match: f"&#{ord(match[0])};", markup)


def clean_markup(markup: str) -> str:
    """Return HTML or SVG without control characters; see `clean` and `with_references`."""
    return with_references(clean(markup))


def escaped(text: str) -> str:
    """Escape `text` for HTML content and for attributes in double quotes."""
    return clean_markup(escape(text))


def shortened(text: str, max_columns: int) -> str:
    """Shorten a text to one line of `max_columns` columns. Its beginning and end are kept."""
    text = " ".join(text.split()) if not text.isprintable() else text
    if len(text) <= max_columns and (text.isascii() or Text(text).cell_len <= max_columns):
        return text
    tail = max_columns // 3
    return f"{_fitting(text, max_columns - tail - 1)}…{_fitting(text[::-1], tail)[::-1]}"


def _fitting(text: str, columns: int) -> str:
    if text.isascii():
        return text[:columns]
    fitted = Text(text)
    fitted.truncate(columns, overflow="crop")
    return fitted.plain


def counted(counts: Mapping[str, int]) -> str:
    """Return the number of atoms by state: `3 success, 1 failure`."""
    known_states = [state for state in _styles.STATES if counts.get(state)]
    other_states = [state for state in counts if state not in _styles.STATES and counts[state]]
    return ", ".join(
        f"{counts[state]:,} {_styles.word(state)}" for state in known_states + other_states
    )


def line(box: NodeView) -> str:
    """Return the line of a box below its name."""
    if not box.is_atom:
        return _formatting.count(box.size, "step" if box.kind == WORKFLOW else "atom")
    atom = box.atom
    if atom is None:
        return ""
    text = state_of(atom)
    duration = atom.execution_runtime
    if duration is not None and atom.state != "PENDING" and box.kind != outlines.RETRY:
        text += f" · {_formatting.seconds(duration)}"
    elif atom.state == "RUNNING" and atom.progress:
        text += f" · {atom.progress:.0%}"
    if atom.executions > 1:
        text += f" · execution {atom.executions}"
    if atom.items:
        done = atom.items.get("SUCCESS", 0)
        text += f" · {done:,}/{sum(atom.items.values()):,}"
    return text


def state_of(atom: AtomView) -> str:
    """Return the word for the displayed state, and whether the atom failed before its reversion."""
    word = _styles.word(atom.shown_state)
    return f"failed, {word}" if atom.failed_before else word


def tooltip(box: NodeView) -> list[str]:
    """Return the lines of the tooltip of a box."""
    notes = [box.notes] if box.notes else []
    if not box.is_atom:
        prefix = "" if box.kind == GROUP else f"{box.kind} "
        return [f"{prefix}{box.name}", f"{line(box)}: {counted(box.atom_counts)}", *notes]
    task = [box.task] if box.task not in (None, box.name) else []
    facts = [] if box.atom is None else _facts(box.atom)
    return [f"{box.kind} {box.name}", *task, *notes, *facts]


def _facts(atom: AtomView) -> list[str]:
    facts = [state_of(atom)]
    if atom.worker is not None and atom.worker != "local":
        facts.append(f"on {atom.worker}")
    if took := _formatting.took(atom.execution_runtime, atom.reversion_runtime):
        facts.append(f"took {took}")
    if _formatting.nth(atom) > 1:
        facts.append(f"attempt {_formatting.nth(atom)}")
    if atom.items:
        facts.append(f"items: {counted(atom.items)}")
    if atom.waiting:
        facts.append(atom.waiting)
    failures = (atom.failure, atom.revert_failure)
    return [*facts, *(shortened(each.line, 300) for each in failures if each is not None)]
