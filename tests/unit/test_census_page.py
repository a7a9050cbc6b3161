"""census.html is the report of the run, with the census in it; it trusts no name."""

from __future__ import annotations

import re

import pytest

from wbengine import states
from wbengine.examples.census import measuring, page
from wbengine.examples.census.record import Record
from wbengine.persistence import models
from wbengine.views import flow as flows

HOSTILE = "<b>&\"'x"


def a_record(module: str = "alpha") -> Record:
    counts = measuring.measure("a.py", b"def f():\n  if a:\n    b\n")
    bad = measuring.unreadable(f"{module}/bad.py", "SyntaxError: no")
    total = measuring.add([counts, bad])
    census = {"source": module, "total": total, "modules": [{"name": module, **total}]}
    detail = models.FlowDetail("census")
    detail.enter(states.SUCCESS, 100.0)
    for number, name in enumerate([f"measure {module}", "write report"]):
        atom = models.TaskDetail(name)
        atom.attempt = 1
        atom.worker = f"process {number}"
        atom.submitted = atom.started = 97.0 + number
        atom.ended = 97.9 + number
        atom.put(states.SUCCESS, None)
        detail.add(atom)
    return Record("worker-based", 3.21, flows.view(detail, now=100.0), census)


@pytest.mark.parametrize("module", ["alpha", HOSTILE])
def test_the_page_loads_nothing_and_escapes_every_name(module):
    text = page.render(a_record(module))

    assert text.startswith("<!DOCTYPE html>")
    assert not re.search(r"@import|url\(|(?<!xmlns=\")https?://", text)
    assert "<b>&" not in text


def test_the_page_has_the_census_and_the_run():
    text = page.render(a_record())

    assert "<title>Census of alpha</title>" in text
    assert text.index('id="modules"') < text.index('id="graph"') < text.index('id="timeline"')
    assert "worker-based, 3.21 s" in text
    assert "process 1" in text
    assert "measure alpha" in text
    assert "Longest function" in text


def test_the_table_is_sorted_by_lines_and_lists_what_did_not_parse():
    text = page.render(a_record())

    assert 'data-sort="number" aria-sort="descending"><button>lines' in text
    assert "1 file could not be parsed" in text
    assert "alpha/bad.py" in text
