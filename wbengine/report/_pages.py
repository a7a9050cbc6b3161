"""The frame of a report: one HTML page that loads nothing."""

from __future__ import annotations

import base64
import hashlib
import os
import pathlib
from collections.abc import Sequence
from typing import Final

from wbengine import version
from wbengine.drawing import STYLESHEET
from wbengine.drawing._box_text import escaped
from wbengine.report import _style
from wbengine.report._parts import Section

__all__ = ["page", "save"]

_HASH: Final = base64.b64encode(hashlib.sha256(_style.SCRIPT.encode()).digest()).decode()
#: The page loads nothing, whatever its content is.
_POLICY: Final = (
    f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{_HASH}'; img-src data:;"
    " base-uri 'none'; form-action 'none'"
)


def page(
    title: str, mark: str, header: str, sections: Sequence[Section], footer: str, *, style: str = ""
) -> str:
    """Return the page as text, to be encoded as UTF-8.

    :param title: the title, which is escaped.
    :param mark: HTML after the title.
    :param header: HTML below the title.
    :param footer: HTML of the footer, without the version.
    :param style: additional style sheet.
    """
    name = escaped(title)
    links = "".join(
        f'<a href="#{escaped(section.id)}">{escaped(section.title)}</a>' for section in sections
    )
    body = "\n".join(section.render() for section in sections)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{name}</title>
<link rel="icon" href="data:,">
<style>{_style.CSS}{STYLESHEET}{style}</style>
</head>
<body>
<main>
<header>
<h1>{name} {mark}</h1>
{header}
</header>
<nav aria-label="Sections">{links}</nav>
{body}
<footer>{footer} written by wbengine
{escaped(version.version_string())}.</footer>
</main>
<script>{_style.SCRIPT}</script>
</body>
</html>
"""


def save(path: str | os.PathLike[str], text: str) -> None:
    """Write a page to a file, atomically.

    :raises OSError: if the file cannot be written.
    """
    target = pathlib.Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
