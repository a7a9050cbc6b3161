"""Icons, words and colours of states, and the style sheet of drawings (light and dark)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

from wbengine import states
from wbengine.views._atoms import QUEUED
from wbengine.views._shown_states import INTERRUPTED, REQUESTED

__all__ = ["STATES", "STYLESHEET", "StateStyle", "icon", "style_of", "word"]


class StateStyle(NamedTuple):
    """The appearance of a state.

    :ivar plain: icon if only ASCII is available.
    :ivar style: style on terminals.
    :ivar colour: colour of lines and icons on a light background.
    :ivar fill: paler colour behind text on a light background.
    """

    icon: str
    plain: str
    word: str
    style: str
    colour: str
    fill: str


#: By displayed state of an atom or flow. Icons are unique: colour alone is not accessible.
STATES: Final[Mapping[str, StateStyle]] = {
    states.PENDING: StateStyle("○", ".", "pending", "dim", "#5a636e", "#f4f5f7"),
    states.RUNNING: StateStyle("▶", ">", "running", "cyan", "#1f5fd0", "#e8f0fe"),
    QUEUED: StateStyle("◷", ":", "queued", "cyan", "#1f5fd0", "#f4f5f7"),
    states.WAITING: StateStyle("⚐", "^", "waiting", "cyan", "#1f5fd0", "#f4f5f7"),
    states.SUCCESS: StateStyle("✔", "+", "success", "green", "#15703a", "#e6f5ec"),
    states.FAILURE: StateStyle("✘", "x", "failure", "bold red", "#c5221f", "#fdecea"),
    states.REVERTING: StateStyle("↩", "<", "reverting", "yellow", "#964f00", "#fff1e0"),
    states.REVERTED: StateStyle("↶", "-", "reverted", "yellow", "#80531a", "#f7efe3"),
    states.REVERT_FAILURE: StateStyle("‼", "!", "revert failure", "bold red", "#9b1452", "#fce7f0"),
    states.RETRYING: StateStyle("↻", "@", "retrying", "yellow", "#7a3fc4", "#f3ebfd"),
    states.IGNORE: StateStyle("⊘", "o", "ignored", "dim", "#5f6873", "#f4f5f7"),
    states.SUSPENDING: StateStyle("◔", "~", "suspending", "yellow", "#776000", "#fdf5d8"),
    states.SUSPENDED: StateStyle("◫", "=", "suspended", "yellow", "#776000", "#fdf5d8"),
    states.BLOCKED: StateStyle("⊠", "#", "blocked by code", "bold red", "#c5221f", "#fdecea"),
    INTERRUPTED: StateStyle("◌", "/", "interrupted", "bold yellow", "#776000", "#fdf5d8"),
    REQUESTED: StateStyle("◎", "|", "requested", "cyan", "#1f5fd0", "#f4f5f7"),
    states.CANCELLING: StateStyle("◒", "(", "cancelling", "yellow", "#964f00", "#fff1e0"),
    states.CANCELLED: StateStyle("⊗", ")", "cancelled", "yellow", "#80531a", "#f7efe3"),
    states.RESUMING: StateStyle("⟳", "*", "resuming", "cyan", "#1f5fd0", "#e8f0fe"),
}
#: Styles of incidents, by event.
_INCIDENT_STYLES: Final[Mapping[str, StateStyle]] = {
    states.WORKER_LOST: StateStyle("⚠", "%", "worker lost", "bold red", "#c5221f", "#fdecea"),
    states.RESENT: StateStyle("⇢", "&", "resent", "yellow", "#7a3fc4", "#f3ebfd"),
}
_UNKNOWN: Final = StateStyle("•", "?", "unknown", "", "#5a636e", "#f4f5f7")


def style_of(state: str | None) -> StateStyle:
    """Return the style of a state. Unknown states share one style."""
    style = STATES.get(state or states.PENDING)
    return style or _INCIDENT_STYLES.get(state or "", _UNKNOWN)


def icon(state: str | None) -> str:
    """Return the icon of a state, one character."""
    return style_of(state).icon


def word(state: str | None) -> str:
    """Return the word for a state."""
    style = style_of(state)
    return str(state).lower() if style is _UNKNOWN else style.word


#: Colours of lines and icons, and behind text, on a dark background.
_DARK_COLOURS: Final = {
    "PENDING": ("#8f99a6", "#20252c"),
    "RUNNING": ("#7fb0ff", "#172a4a"),
    "QUEUED": ("#7fb0ff", "#20252c"),
    "WAITING": ("#7fb0ff", "#20252c"),
    "SUCCESS": ("#5fcf8b", "#14301f"),
    "FAILURE": ("#ff8a80", "#42191a"),
    "REVERTING": ("#ffb35c", "#3d2a12"),
    "REVERTED": ("#d9ad72", "#30281c"),
    "REVERT_FAILURE": ("#ff8fbf", "#421629"),
    "RETRYING": ("#c9a3ff", "#2c2042"),
    "IGNORE": ("#8e98a5", "#1d2127"),
    "SUSPENDING": ("#e8c95a", "#332c10"),
    "SUSPENDED": ("#e8c95a", "#332c10"),
    "BLOCKED": ("#ff8a80", "#42191a"),
    "INTERRUPTED": ("#e8c95a", "#332c10"),
    "REQUESTED": ("#7fb0ff", "#20252c"),
    "CANCELLING": ("#ffb35c", "#3d2a12"),
    "CANCELLED": ("#d9ad72", "#30281c"),
    "RESUMING": ("#7fb0ff", "#172a4a"),
}


def _variables(dark: bool) -> str:
    declarations = []
    for state, style in STATES.items():
        colour, fill = _DARK_COLOURS[state] if dark else (style.colour, style.fill)
        declarations.append(f"--c-{state}:{colour};--f-{state}:{fill}")
    return ";".join(declarations)


def _states() -> str:
    return "\n".join(
        f".wbe-graph .state-{state},.wbe-chart .state-{state},.wbe-pill.state-{state}"
        f"{{--c:var(--c-{state});--f:var(--f-{state})}}"
        for state in STATES
    )


#: Style sheet of SVG drawings that are not `standalone`.
STYLESHEET: Final = f"""\
.wbe-graph,.wbe-chart,.wbe-pill{{--ink:#1d2127;--dim:#5c6570;--paper:#fff;--frame:#fafbfc;--line:#d5d9df;\
--arrow:#8a94a1;--focus:#2456c9;{_variables(False)}}}
.wbe-graph,.wbe-chart{{font:500 13px/1 system-ui,-apple-system,"Segoe UI",Roboto,\
"Helvetica Neue",Arial,sans-serif}}
@media (prefers-color-scheme:dark){{.wbe-graph,.wbe-chart,.wbe-pill{{--ink:#e8eaed;--dim:#9aa4b1;\
--paper:#14181d;--frame:#191d23;--line:#343b45;--arrow:#6d7886;--focus:#8db4ff;{_variables(True)}}}}}
.wbe-graph text{{fill:var(--ink);font-family:inherit}}
.wbe-graph a{{cursor:pointer}}
.wbe-graph .flow>.shape{{fill:var(--frame);stroke:var(--line)}}
.wbe-graph .flow text{{font-weight:600;font-size:12px;text-anchor:start;fill:var(--dim)}}
.wbe-graph .atom>.shape{{fill:var(--f);stroke:var(--c);stroke-width:1.25}}
.wbe-graph .atom.state-PENDING>.shape,.wbe-graph .atom.state-IGNORE>.shape,\
.wbe-graph .retries path{{stroke-dasharray:4 3}}
.wbe-graph .atom.collapsed>.shape{{stroke-width:2.5}}
.wbe-graph .atom.failed>.shape{{stroke:var(--c-FAILURE);stroke-width:2.5}}
.wbe-graph .icon{{fill:var(--c)}}
.wbe-graph .name{{font-size:13px}}
.wbe-graph text.state{{font-size:11px;font-weight:400;fill:var(--dim)}}
.wbe-graph .state-IGNORE .name{{fill:var(--dim);text-decoration:line-through}}
.wbe-graph .edge path{{stroke:var(--arrow)}}
.wbe-graph .edge polygon{{fill:var(--arrow);stroke:var(--arrow)}}
.wbe-graph .atom:hover>.shape{{stroke-width:2}}
.wbe-graph .atom:focus,.wbe-graph a:focus{{outline:none}}
.wbe-graph .atom:focus-visible>.shape,\
.wbe-graph a:focus-visible .shape{{stroke:var(--focus);stroke-width:3}}
.wbe-pill{{display:inline-block;font-size:12px;font-weight:600;line-height:1;padding:5px 9px;
 border-radius:99px;color:var(--c);background:var(--f);border:1px solid var(--c);
 white-space:nowrap}}
.wbe-chart text{{fill:var(--ink);font-size:11px}}
.wbe-chart .lane{{fill:var(--frame)}}
.wbe-chart .lane-name{{font-weight:600;font-size:12px}}
.wbe-chart .dim,.wbe-chart .tick{{fill:var(--dim);font-weight:400}}
.wbe-chart .tick{{text-anchor:middle;font-size:10.5px}}
.wbe-chart .grid{{stroke:var(--line);stroke-width:1}}
.wbe-chart .bar{{fill:var(--f);stroke:var(--c);stroke-width:1.2}}
.wbe-chart .revert .bar{{stroke-dasharray:3 2}}
.wbe-chart .on{{pointer-events:none;font-size:10.5px}}
.wbe-chart .attempt:hover .bar{{stroke-width:2}}
{_states()}
"""
