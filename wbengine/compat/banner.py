"""What a program says of itself when it starts."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Final

import wbengine

BANNER_HEADER: Final = f"wbengine v{wbengine.__version__}"


def make_banner(what: str, chapters: Mapping[str, Any]) -> str:
    """A heading for `what`, and below it the chapters by name, as lines.

    A chapter is a dict of what it has by name, or a list, tuple or set of what it has in order.

    :raises TypeError: a chapter is something else.
    """
    lines = [BANNER_HEADER, f"*{what}*"]
    for title in sorted(chapters):
        content = chapters[title]
        lines.append(f"{title}:")
        if isinstance(content, dict):
            lines += [f"  {name} => {content[name]}" for name in sorted(content)]
        elif isinstance(content, list | tuple | set):
            ordered = sorted(content) if isinstance(content, set) else content
            lines += [f"  {place}. {item}" for place, item in enumerate(ordered, 1)]
        else:
            raise TypeError(
                f"Chapter {title!r} must be a dict, list, tuple or set,"
                f" not {type(content).__name__}"
            )
    return os.linesep.join(lines)
