"""What stands for a state: an icon, a word, and colours where there is no style sheet."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from wbengine import states

__all__ = ["MARKS", "Mark", "icon", "mark", "word"]


class Mark(NamedTuple):
    """`plain` is the icon where there is only ASCII, `style` that of terminals.

    `colour` is that of lines and icons, `fill` a paler one below text; both for light paper.
    """

    icon: str
    plain: str
    word: str
    style: str
    colour: str
    fill: str


#: By the state of an atom or a flow.  No two states share an icon: colour alone says nothing.
MARKS: Final[Mapping[str, Mark]] = {
    states.PENDING: Mark("○", ".", "pending", "dim", "#5a636e", "#f4f5f7"),
    states.RUNNING: Mark("▶", ">", "running", "cyan", "#1f5fd0", "#e8f0fe"),
    states.SUCCESS: Mark("✔", "+", "success", "green", "#15703a", "#e6f5ec"),
    states.FAILURE: Mark("✘", "x", "failure", "bold red", "#c5221f", "#fdecea"),
    states.REVERTING: Mark("↩", "<", "reverting", "yellow", "#964f00", "#fff1e0"),
    states.REVERTED: Mark("↶", "-", "reverted", "yellow", "#80531a", "#f7efe3"),
    states.REVERT_FAILURE: Mark("‼", "!", "revert failure", "bold red", "#9b1452", "#fce7f0"),
    states.RETRYING: Mark("↻", "@", "retrying", "yellow", "#7a3fc4", "#f3ebfd"),
    states.IGNORE: Mark("⊘", "o", "left out", "dim", "#5f6873", "#f4f5f7"),
    states.SUSPENDING: Mark("◔", "~", "suspending", "yellow", "#776000", "#fdf5d8"),
    states.SUSPENDED: Mark("◫", "=", "suspended", "yellow", "#776000", "#fdf5d8"),
    states.RESUMING: Mark("⟳", "*", "resuming", "cyan", "#1f5fd0", "#e8f0fe"),
}
_OTHER: Final = Mark("•", "?", "unknown", "", "#5a636e", "#f4f5f7")


def mark(state: str | None) -> Mark:
    """What stands for `state`."""
    return MARKS.get(state or states.PENDING, _OTHER)


def icon(state: str | None) -> str:
    """One character for `state`."""
    return mark(state).icon


def word(state: str | None) -> str:
    """What people call `state`."""
    found = mark(state)
    return str(state).lower() if found is _OTHER else found.word
