"""census.html is whole, needs nothing else, and trusts no name."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree as ET

import pytest

from wbengine.examples.census import flow, graph, measuring, page, record, timeline
from wbengine.examples.census.sources import Group

HOSTILE = "<b>&\"'x"
_VOID = {"meta", "link", "br"}


def a_record(workers: int = 2, groups: int = 3, module: str = "alpha") -> record.Record:
    made = [Group(f"{module}.{n}", module, (f"{n}.py",), 10) for n in range(groups)]
    attempts = [
        (step, f"host:{number % workers}", 100.0 + number, 101.5 + number)
        for number, step in enumerate(flow.steps(made))
    ]
    counts = measuring.measure("a.py", b"def f():\n  if a:\n    b\n")
    bad = measuring.unreadable(f"{module}/bad.py", "SyntaxError: no")
    total = measuring.add([counts, bad])
    census = {"source": module, "total": total, "modules": [{"name": module, **total}]}
    return record.compile_record("worker-based", 3.21, attempts, census)


class Checker(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.links: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        for name, value in attrs:
            if name in ("src", "href", "xlink:href", "action"):
                self.links.append(value)
            if name == "id":
                self.ids.append(value)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


@pytest.mark.parametrize("module", ["alpha", HOSTILE])
def test_the_page_is_balanced_and_loads_nothing(module):
    text = page.render(a_record(module=module))
    checker = Checker()
    checker.feed(text)

    assert checker.open == []
    assert checker.links == ["data:,"]
    assert len(checker.ids) == len(set(checker.ids))
    assert not re.search(r"@import|url\(|https?://", text)
    assert "b" not in [tag for tag in checker.tags if tag == "script"]
    assert "<b>&\"'x" not in text


@pytest.mark.parametrize("draw", [graph.draw, timeline.draw])
@pytest.mark.parametrize(("workers", "groups"), [(1, 1), (2, 3), (9, 130)])
def test_the_pictures_are_xml_and_show_every_task(draw, workers, groups):
    shown = a_record(workers, groups, HOSTILE)
    root = ET.fromstring(draw(shown))

    titles = [title.text or "" for title in root.iter("title")][1:]
    names = sorted(title.split("\n")[0] for title in titles)
    assert names == sorted(ran.step.name for ran in shown.ran)
    assert root.get("role") == "img"
    assert root.find("desc") is not None


def test_tasks_that_overlap_on_a_worker_get_lanes_of_their_own():
    shown = a_record(workers=1, groups=3)
    bars = [
        (float(bar.get("y", 0)), float(bar.get("x", 0)), float(bar.get("width", 0)))
        for bar in ET.fromstring(timeline.draw(shown)).iter("rect")
        if "bar" in (bar.get("class") or "")
    ]
    assert len(bars) == len(shown.ran)
    for y, x, width in bars:
        assert not [b for b in bars if b[0] == y and x < b[1] < x + width]


def test_workers_are_numbered_by_their_first_task_and_times_start_at_zero():
    shown = a_record(workers=2)
    assert shown.workers == ("host:0", "host:1")
    assert shown.ran[0].started == 0.0
    assert shown.name(1) == "worker 2"
    assert shown.busy(0) == pytest.approx(1.5 * sum(ran.worker == 0 for ran in shown.ran))


def test_the_table_is_sorted_by_lines_and_lists_what_did_not_parse():
    text = page.render(a_record())
    assert 'aria-sort="descending"' in text
    assert "1 file could not be parsed" in text
    assert "alpha/bad.py" in text
