"""HTML reports: content, escaping, masking and size."""

from __future__ import annotations

import itertools
import time

import pytest
from axe_playwright_python.sync_playwright import Axe

from tests.drawing.flow_views import hostile, view_of
from tests.support import html_pages
from tests.views import canaries, records
from wbengine import report
from wbengine.persistence import backends, models
from wbengine.views import _critical
from wbengine.views import _timeline as timelines
from wbengine.views import flow_status as flows


@pytest.mark.parametrize("made", [records.order, records.failed, hostile])
def test_page_is_well_formed_and_loads_nothing(made):
    text = report.html(view_of(made()))
    html_pages.checked(text)
    assert "<b>\\N" not in text


def test_report_of_cancelled_flow_shows_the_reason():
    flow, outline = records.failed()
    flow.cancel(records.T, "no need (by ann)")
    text = report.html(view_of((flow, outline)))
    assert 'state-CANCELLED">' in text and "Cancelled: no need (by ann)" in text


def test_report_has_all_sections():
    text = report.html(view_of(records.failed()))
    said = "".join(html_pages.Parsed(text).said)
    for title in (
        "Graph", "Failures", "Timeline", "Critical path", "Slowest atoms",
        "Reverted atoms", "History", "All atoms",
    ):  # fmt: skip
        assert f">{title}</h2>" in text
    assert "ValueError: card refused" in said
    assert "The above exception was the direct cause of the following exception:" in said
    assert "A flow of 8 atoms ran for 21 s on 3 workers" in said


def test_report_omits_empty_sections():
    flow = models.FlowDetail("new")
    records.atom(flow, "a", None)
    text = report.html(flows.view(flow, now=records.T))
    for title in ("Failures", "Timeline", "Critical path", "Reverted atoms"):
        assert f">{title}</h2>" not in text
    assert "A flow of <b>1</b> atom. No engine has run it yet." in text
    assert "No engine has run the flow yet." in text


def test_report_contains_custom_sections_and_header():
    mine = report.Section("mine", "My <figures>", "<p>1 + 1 = 2</p>", "a & b")
    text = report.html(view_of(records.order()), title="T <1>", sections=[mine], header="<hr>")
    assert "<title>T &lt;1&gt;</title>" in text
    assert "My &lt;figures&gt;" in text
    assert text.index("<hr>") < text.index("<p>1 + 1 = 2</p>") < text.index(">Graph</h2>")


def test_report_of_1000_atoms_is_fast_and_small():
    view = view_of(records.wide(1000, done=1.0))
    began = time.process_time()
    text = report.html(view)
    assert time.process_time() - began < 2
    assert len(text.encode()) < 3_000_000
    assert text.count('<tr id="atom-') == 1000


@pytest.mark.slow
def test_report_lists_only_the_first_2000_atoms():
    text = report.html(view_of(records.wide(20_000)))
    assert "The table contains the first 2,000 atoms; 18,000 more are not listed." in text
    assert len(text.encode()) < 6_000_000


def test_write_is_atomic(tmp_path):
    view = view_of(records.order())
    report.write(tmp_path / "a.html", view)
    assert (tmp_path / "a.html").read_text("utf-8") == report.html(view)
    (tmp_path / "b.html").mkdir()
    with pytest.raises(OSError):
        report.write(tmp_path / "b.html", view)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "b.html"]


def test_report_contains_no_secret():
    backend = backends.fetch({"connection": "memory"})
    engine = canaries.run(backend=backend)
    with backend.get_connection() as connection:
        text = report.html(flows.read(connection, engine.storage.flow_uuid))
    assert "c4n4ry" not in text
    assert "cannot log in with &#x27;***&#x27;" in text


@pytest.mark.slow
def test_page_works_in_browser_without_errors_or_requests(browser, tmp_path):
    """The page is opened from a file, in light and in dark mode."""
    report.write(tmp_path / "run.html", view_of(records.failed()))
    for scheme in ("light", "dark"):
        page = browser.new_page(color_scheme=scheme)
        heard: list[str] = []
        page.on("console", lambda message: heard.append(message.text))  # noqa: B023
        page.on("pageerror", lambda error: heard.append(str(error)))  # noqa: B023
        page.on("request", lambda request: heard.append(request.url))  # noqa: B023
        page.goto((tmp_path / "run.html").as_uri())
        heard = [console for console in heard if not console.startswith(("file:", "data:"))]
        violations = Axe().run(page)
        assert violations.violations_count == 0, violations.generate_report()
        first = page.locator("#atoms-table tbody tr th").first
        assert first.inner_text() == "read cart"
        page.locator("#atoms-table thead button", has_text="took").click()
        assert first.inner_text() == "check stock"
        page.locator("input[data-finds=atoms-table]").fill("archive")
        assert page.locator("#atoms-table tbody tr:visible").count() == 1
        page.locator('a[href="#atom-8"]').first.click()
        assert page.url.endswith("#atom-8")
        assert heard == []
        page.close()


# -- critical path and timeline --------------------------------------------------------------------


def test_critical_path_follows_dependencies():
    flow, outline = records.order("SUCCESS")
    for start, each in enumerate(flow):
        if each.name not in ("read cart", "check stock", "check address"):
            each.put("SUCCESS", None)
            for field, value in records.ran(3 + start, 1.0).items():
                setattr(each, field, value)
    view = flows.view(flow, outline, now=records.T + 20)
    named = [atom.name for atom in _critical.path(view)]
    assert named == ["check stock", "pay again", "reserve", "capture", "notify", "archive"]
    assert [atom.name for atom in _critical.slowest(view, 2)] == ["check stock", "read cart"]


def test_timeline_bars_of_one_row_do_not_overlap():
    chart = timelines.timeline(view_of(records.wide(400, width=40)))
    assert [lane.worker for lane in chart.lanes] == ["host:0", "host:1", "host:2", "host:3"]
    assert sum(len(lane.bars) for lane in chart.lanes) == 240
    for lane in chart.lanes:
        assert len(lane.rows) > 1
        for row in lane.rows:
            for one, other in itertools.pairwise(row):
                assert one.ended <= other.started


def test_timeline_bar_of_running_task_ends_now():
    view = view_of(records.order())
    chart = timelines.timeline(view, now=records.T + 99)
    (lane,) = [lane for lane in chart.lanes if lane.worker is None]
    assert [(bar.name, bar.state, bar.ended) for bar in lane.bars] == [
        ("reserve", "RUNNING", records.T + 99)
    ]
    assert (chart.begin, chart.end) == (records.T + 0.2, records.T + 99)
