"""Write `llms.txt`, an index of the pages for language models (https://llmstxt.org).

A section contains the pages of one toctree, in its order, each with its first sentence.
"""

from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment


def sections(
    env: BuildEnvironment, page: str, caption: str, parents: tuple[str, ...] = ()
) -> Iterator[tuple[str, list[str]]]:
    """Yield the captions of the toctrees of `page` and below, each with its pages in order."""
    for toctree in env.tocs[page].findall(addnodes.toctree):
        own = toctree["caption"] or ""
        name = ": ".join(filter(None, (caption, own)))
        entries = [each for _, each in toctree["entries"] if each in env.all_docs]
        entries = [each for each in entries if each not in parents]
        yield name, entries
        for entry in entries:
            yield from sections(env, entry, name, (*parents, page))


def first_sentence(document: nodes.document) -> str:
    """Return the first sentence of a page with more than one word, or an empty text."""
    paragraph = next(iter(document.findall(nodes.paragraph)), None)
    text = " ".join(paragraph.astext().split()) if paragraph is not None else ""
    sentences = re.split(r"(?<=\.)\s", text)
    return next((each for each in sentences if " " in each), "")


def lines(app: Sphinx) -> Iterator[str]:
    env, root = app.env, app.config.root_doc
    yield f"# {app.config.project}"
    yield ""
    if summary := app.config.llms_summary:
        yield f"> {summary}"
        yield ""
    yield "`_sources` contains the source of each page, for example `_sources/index.rst.txt`."
    merged: dict[str, list[str]] = {}
    for caption, pages in sections(env, root, ""):
        merged.setdefault(caption or "Pages", []).extend(pages)
    for caption, pages in merged.items():
        yield ""
        yield f"## {caption}"
        yield ""
        for page in dict.fromkeys(pages):
            title = env.titles[page].astext()
            url = app.config.html_baseurl + app.builder.get_target_uri(page)
            description = first_sentence(env.get_doctree(page))
            yield f"- [{title}]({url})" + (f": {description}" if description else "")


def write(app: Sphinx, exception: Exception | None) -> None:
    if exception is None and app.builder.format == "html":
        text = "\n".join(lines(app)) + "\n"
        pathlib.Path(app.outdir, "llms.txt").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, bool]:
    app.add_config_value("llms_summary", "", "", (str,))
    app.connect("build-finished", write)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
