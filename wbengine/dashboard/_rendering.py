"""Templates and their filters, and JSON responses, without control characters."""

from __future__ import annotations

import functools
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import jinja2
from starlette.responses import JSONResponse

from wbengine import states
from wbengine._text.terminal_text import escaped_json
from wbengine.dashboard import _operation_forms
from wbengine.drawing import _box_text, _styles
from wbengine.views import _formatting
from wbengine.views._atoms import QUEUED

__all__ = [
    "STATIC", "SafeJSONResponse", "asset_version", "environment", "ordered", "render",
    "segments",
]  # fmt: skip

_HERE: Final = Path(__file__).resolve().parent
STATIC: Final = _HERE / "static"

#: Settings of htmx: no inline styles, no evaluated code. An error response does not replace a
#: part of the page, which would then not reload itself.
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
    """Return a hash of a static file. Browsers cache the file under this hash."""
    return hashlib.sha256((STATIC / name).read_bytes()).hexdigest()[:12]


def segments(counts: Mapping[str, int]) -> list[tuple[str, float, float]]:
    """Return state, start and width, in percent, of the segments of a progress bar."""
    total = sum(counts.values())
    parts, begin = [], 0.0
    for state, count in ordered(counts):
        width = 100.0 * count / total
        parts.append((state, round(begin, 3), round(width, 3)))
        begin += width
    return parts


def ordered(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Return the counts above 0, in the order of the progress bar."""
    return [(state, counts[state]) for state in sorted(counts, key=_order) if counts[state]]


_BAR_ORDER: Final = (
    states.SUCCESS,
    states.IGNORE,
    states.RUNNING,
    QUEUED,
    states.WAITING,
    states.RETRYING,
    states.REVERTING,
    states.REVERTED,
    states.FAILURE,
    states.REVERT_FAILURE,
    states.PENDING,
)


def _order(state: str) -> int:
    return _BAR_ORDER.index(state) if state in _BAR_ORDER else len(_BAR_ORDER)


def _ago(moment: float | None) -> str:
    if moment is None:
        return _formatting.seconds(None)
    passed = time.time() - moment
    if passed < 1:
        return "now"
    return f"{int(passed)} s ago" if passed < 60 else f"{_formatting.seconds(passed)} ago"


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _short(uuid: str) -> str:
    return uuid[:8]


@functools.lru_cache(maxsize=1)
def environment() -> jinja2.Environment:
    """Return the environment of the templates: autoescape is on, unknown names are errors."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_HERE / "templates"),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    env.filters.update(
        ago=_ago, clock=_formatting.clock, count=_formatting.count,
        fields=_operation_forms.fields_of, icon=_styles.icon, iso=_formatting.iso, json=_json,
        nth=_formatting.nth, ordered=ordered, seconds=_formatting.seconds, segments=segments,
        short=_short,
    )  # fmt: skip
    env.globals.update(htmx_config=_HTMX)
    return env


def render(name: str, context: Mapping[str, Any]) -> str:
    return _box_text.clean_markup(environment().get_template(name).render(context))


class SafeJSONResponse(JSONResponse):
    """A JSON response whose control characters, also DEL and C1, are escaped."""

    def render(self, content: Any) -> bytes:
        text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        return escaped_json(text).encode()
