"""HTML pages in one file, which load nothing."""

from __future__ import annotations

import re
from html.parser import HTMLParser

_VOID = {"meta", "link", "br", "input"}


class Parsed(HTMLParser):
    """Parser that checks for balanced elements and collects links, ids and handlers."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str | None] = []
        self.ids: list[str | None] = []
        self.handlers: list[str] = []
        self.said: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
            if name.startswith("on"):
                self.handlers.append(name)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in _VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.said.append(data)


def checked(text: str) -> Parsed:
    """Check that a page is well-formed, and loads nothing."""
    page = Parsed(text)
    assert page.open == []
    assert page.handlers == []
    assert page.tags.count("script") == 1
    assert len(page.ids) == len(set(page.ids))
    for link in page.links:
        assert link is not None
        assert link == "data:," or (link.startswith("#") and link[1:] in page.ids)
    assert not re.search(r"@import|url\(|(?<!xmlns=\")https?://", text)
    text.encode()
    return page
