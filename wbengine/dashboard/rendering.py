"""Templates, and the words and marks they share."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2

from wbengine import states
from wbengine.drawing import styles
from wbengine.views import formatting
from wbengine.views.flow import QUEUED

__all__ = ["STATIC", "asset_version", "environment", "ordered", "render", "segments"]

_HERE: Final = Path(__file__).resolve().parent
STATIC: Final = _HERE / "static"

#: What htmx may do: nothing that needs inline styles or code made of texts.  An error does not take
#: the place of what is shown, which would not ask again.
_HTMX: Final = json.dumps(
    {
        "includeIndicatorCSS": False,
        "history": False,
        "defaultTimeout": 20000,
        "noSwap": [204, 304, "4xx", "5xx"],
    }
)


@functools.lru_cache(maxsize=64)
def asset_version(name: str) -> str:
    """A mark of what is in a static file: browsers keep one until it changes."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def segments(counts: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """State, beginning and width, in percent, of the parts of a bar: what is done comes first."""
    total = sum(counts.values())
    found, begin = [], 0.0
    for state, count in ordered(counts):
        width = 100.0 * count / total
        found.append((state, round(begin, 3), round(width, 3)))
        begin += width
    return found


def ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """The counts that are not nothing, in the order of the bar."""
    return [(state, counts[state]) for state in sorted(counts, key=_order) if counts[state]]


_BAR: Final = (
    states.SUCCESS,
    states.IGNORE,
    states.RUNNING,
    QUEUED,
    states.RETRYING,
    states.REVERTING,
    states.REVERTED,
    states.FAILURE,
    states.REVERT_FAILURE,
    states.PENDING,
)


def _order(state: str) -> int:
    return _BAR.index(state) if state in _BAR else len(_BAR)


def _ago(moment: float | None) -> str:
    if moment is None:
        return formatting.seconds(None)
    passed = time.time() - moment
    if passed < 1:
        return "now"
    return f"{int(passed)} s ago" if passed < 60 else f"{formatting.seconds(passed)} ago"


def _short(uuid: str) -> str:
    return uuid[:8]


@functools.lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Everything is escaped, and a name that a template does not know is an error."""
    made = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=_ago, clock=formatting.clock, count=formatting.count, icon=styles.icon,
        iso=formatting.iso, nth=formatting.nth, ordered=ordered, seconds=formatting.seconds,
        segments=segments, short=_short,
    )  # fmt: skip
    made.globals.update(htmx_config=_HTMX)
    return made


def render(name: str, context: Mapping[str, Any]) -> str:
    return environment().get_template(name).render(context)
