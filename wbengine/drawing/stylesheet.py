"""How pictures look: by classes only, in light and dark."""

from __future__ import annotations

from typing import Final

from wbengine.drawing import marks

__all__ = ["STYLESHEET"]

#: Colours of lines and icons, and of what is below text, on dark paper.
_DARK: Final = {
    "PENDING": ("#8f99a6", "#20252c"),
    "RUNNING": ("#7fb0ff", "#172a4a"),
    "SUCCESS": ("#5fcf8b", "#14301f"),
    "FAILURE": ("#ff8a80", "#42191a"),
    "REVERTING": ("#ffb35c", "#3d2a12"),
    "REVERTED": ("#d9ad72", "#30281c"),
    "REVERT_FAILURE": ("#ff8fbf", "#421629"),
    "RETRYING": ("#c9a3ff", "#2c2042"),
    "IGNORE": ("#8e98a5", "#1d2127"),
    "SUSPENDING": ("#e8c95a", "#332c10"),
    "SUSPENDED": ("#e8c95a", "#332c10"),
    "RESUMING": ("#7fb0ff", "#172a4a"),
}


def _variables(dark: bool) -> str:
    shown = []
    for state, mark in marks.MARKS.items():
        colour, fill = _DARK[state] if dark else (mark.colour, mark.fill)
        shown.append(f"--c-{state}:{colour};--f-{state}:{fill}")
    return ";".join(shown)


def _states() -> str:
    return "\n".join(
        f".wbe-graph .state-{state},.wbe-chart .state-{state},.wbe-pill.state-{state}"
        f"{{--c:var(--c-{state});--f:var(--f-{state})}}"
        for state in marks.MARKS
    )


#: The style sheet of the SVG: to be served beside pictures that are not `standalone`.
STYLESHEET: Final = f"""\
.wbe-graph,.wbe-chart,.wbe-pill{{--ink:#1d2127;--dim:#5c6570;--paper:#fff;--frame:#fafbfc;--line:#d5d9df;\
--arrow:#8a94a1;--focus:#2456c9;{_variables(False)}}}
.wbe-graph,.wbe-chart{{font:500 13px/1 system-ui,-apple-system,"Segoe UI",Roboto,\
"Helvetica Neue",Arial,sans-serif}}
@media (prefers-color-scheme:dark){{.wbe-graph,.wbe-chart,.wbe-pill{{--ink:#e8eaed;--dim:#9aa4b1;\
--paper:#14181d;--frame:#191d23;--line:#343b45;--arrow:#6d7886;--focus:#8db4ff;{_variables(True)}}}}}
.wbe-graph text{{fill:var(--ink)}}
.wbe-graph a{{cursor:pointer}}
.wbe-graph .paper{{fill:none}}
.wbe-graph .frame{{fill:var(--frame);stroke:var(--line);stroke-width:1}}
.wbe-graph .flow.even>.frame{{fill:var(--paper)}}
.wbe-graph .flow-name{{font-weight:600;font-size:12px;fill:var(--dim)}}
.wbe-graph .flow .icon{{font-size:11px;fill:var(--c)}}
.wbe-graph .box{{fill:var(--f);stroke:var(--c);stroke-width:1.25}}
.wbe-graph .state-PENDING .box,.wbe-graph .state-IGNORE .box{{stroke-dasharray:4 3}}
.wbe-graph .stack{{fill:var(--f);stroke:var(--c);stroke-width:1;opacity:.55}}
.wbe-graph .atom .icon{{font-size:15px;fill:var(--c);text-anchor:middle}}
.wbe-graph .atom .name{{font-size:13px}}
.wbe-graph .atom .state{{font-size:11px;font-weight:400;fill:var(--dim)}}
.wbe-graph .state-IGNORE .name{{fill:var(--dim);text-decoration:line-through}}
.wbe-graph .state-REVERTED .name{{fill:var(--dim)}}
.wbe-graph .progress{{fill:var(--c)}}
.wbe-graph .share{{fill:var(--c)}}
.wbe-graph .edge{{fill:none;stroke:var(--arrow);stroke-width:1.2}}
.wbe-graph .tip{{fill:var(--arrow);stroke:none}}
.wbe-graph .retries{{stroke-dasharray:2 3}}
.wbe-graph .atom:hover .box{{stroke-width:2}}
.wbe-graph .atom:focus{{outline:none}}
.wbe-graph .atom:focus-visible .box,\
.wbe-graph a:focus-visible .box{{stroke:var(--focus);stroke-width:3}}
.wbe-graph a:focus{{outline:none}}
@media (prefers-reduced-motion:no-preference){{.wbe-graph .state-RUNNING>.icon{{\
animation:wbe-pulse 1.6s ease-in-out infinite}}@keyframes wbe-pulse{{50%{{opacity:.35}}}}}}
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
