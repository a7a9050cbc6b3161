"""Contents of the pages."""

from __future__ import annotations

import contextlib
import html
import re
from pathlib import Path
from typing import Any

import pytest
from starlette.testclient import TestClient

from tests.dashboard import story
from tests.dashboard.conftest import admitted, client, refused
from tests.support import child_flows, cpu_time, requested
from wbengine import engines, operations, task
from wbengine.patterns import linear_flow, unordered_flow
from wbengine.persistence import base


def test_list_shows_flows_with_their_states(kept: story.Kept, guest: TestClient) -> None:
    page = guest.get("/").text
    assert kept.uuids["good"] in page and kept.uuids["leaking"] in page
    assert "7 of 7" in page
    assert "RuntimeError" in page  # the reason for the reversion


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("name=Goo", {"good"}),
        ("name=leaking&state=REVERTED", {"leaking"}),
        ("state=SUCCESS", {"good"}),
        ("state=SUCCESS&state=REVERTED", {"good", "leaking"}),
        ("state=RUNNING", set()),
        ("since=1h", {"good", "leaking"}),
        ("name=nobody", set()),
        ("find=goo", {"good"}),
        ("find=GOO", {"good"}),
        ("find=team=blue", {"leaking"}),
        ("find=team+%3D+blue", {"leaking"}),
        ("find=team=red", set()),
        ("engine=workers", {"leaking"}),
        ("engine=serial&state=SUCCESS", {"good"}),
        ("engine=parallel", set()),
        ("queue=reports", {"leaking"}),
        ("queue=default", set()),
    ],
)
def test_list_can_be_filtered(
    kept: story.Kept, guest: TestClient, query: str, shown: set[str]
) -> None:
    with contextlib.closing(kept.backend.get_connection()) as connection:
        leaking = connection.get_flow_details(kept.uuids["leaking"])
        leaking.meta |= {"tags": {"team": "blue"}, "engine": "worker-based"}
        leaking.meta |= {"submitted": {"board": "b", "queue": "reports"}}
        connection.save_changes(leaking, ())
    page = guest.get(f"/?{query}").text
    assert {name for name, uuid in kept.uuids.items() if uuid in page} == shown
    assert ("No matching flows" in page) is not bool(shown)
    listed = guest.get(f"/api/v1/flows?{query}").json()["flows"]
    assert {row["uuid"] for row in listed} == {kept.uuids[name] for name in shown}


def test_list_shows_the_selected_engine(guest: TestClient) -> None:
    page = guest.get("/?engine=workers&limit=1").text
    assert '<option value="worker-based" selected>' in page
    assert '<option value="workers"' not in page
    assert "/stream/flows?engine=worker-based&amp;limit=1" in page and "Show all" in page


def test_flow_is_found_by_the_start_of_its_id(kept: story.Kept, guest: TestClient) -> None:
    page = guest.get(f"/?find={kept.uuids['good'][:9]}").text
    assert kept.uuids["good"] in page and kept.uuids["leaking"] not in page
    assert "No matching flows" in guest.get("/?find=a+b=c").text
    for odd in ("limit=000000500999999", "limit=٣", "after=[1,99999999999999999999]"):
        assert guest.get(f"/?{odd}").status_code == 400


def test_list_has_pages() -> None:
    flows = story.Kept()
    for number in range(5):
        flows.run(f"flow-{number}", linear_flow.Flow(f"flow-{number}").add(story.Fine("one")))
    with client(flows) as browser:
        path, seen = "/?limit=2", []
        admitted(browser)
        while path:
            page = browser.get(path).text
            seen += re.findall(r">(flow-\d)</a>", page)
            older = re.search(r'rel="next" href="([^"]+)"', page)
            path = older[1].replace("&amp;", "&") if older else ""
    assert seen == [f"flow-{number}" for number in (4, 3, 2, 1, 0)]


def test_empty_store_shows_how_to_run_a_flow() -> None:
    with client(story.Kept()) as browser:
        assert "wbengine flow run" in admitted(browser).get("/").text


def test_flow_page_shows_the_tree(kept: story.Kept, guest: TestClient) -> None:
    page = guest.get(f"/flows/{kept.uuids['good']}").text
    names = re.findall(r'<span class="name">(?:<a [^>]*>)?([\w-]+)', page)
    assert names[0] == "first" and names[-1] == "last"
    assert set(names[1:-1]) == {"inner", *(f"task-{number}" for number in range(5))}
    assert page.count("SUCCESS") > 7
    assert 'http-equiv="refresh"' not in page  # the flow has ended


def test_failure_is_shown_with_traceback_and_reverted_tasks(
    kept: story.Kept, guest: TestClient
) -> None:
    uuid = kept.uuids["leaking"]
    head = guest.get(f"/flows/{uuid}").text
    assert "<strong>log in</strong> failed: RuntimeError" in head
    page = guest.get(f"/flows/{uuid}/failures").text
    assert "Traceback (most recent call last)" in page and "story.py" in page
    undone = page.partition("Reverted tasks")[2]
    assert "begin" in undone and "REVERTED" in undone and "never" not in undone


def test_tasks_can_be_filtered_by_state(kept: story.Kept, guest: TestClient) -> None:
    path = f"/flows/{kept.uuids['good']}"
    page = guest.get(path).text
    assert f'href="{path}?state=SUCCESS"' in page
    page = guest.get(f"{path}?state=SUCCESS").text
    assert page.count("data-uuid") == 7 and "<option selected>SUCCESS</option>" in page
    assert page.count(">in inner</div>") == 5 and 'class="group' not in page
    assert f"{path}?part=body&amp;state=SUCCESS" in page, "it stays so"
    assert "No matching tasks" in guest.get(f"{path}?state=FAILURE").text
    assert guest.get(f"{path}?state=SUCCESS&start=7").status_code == 404
    refused(guest.get(f"{path}?state=SUCESS"), 400, "SUCCESS")


def test_tasks_are_found_by_name_and_sorted(kept: story.Kept, guest: TestClient) -> None:
    path = f"/flows/{kept.uuids['good']}"

    def names(query: str) -> list[str]:
        page = guest.get(f"{path}?{query}").text
        return re.findall(r'href="/flows/[^"]+/atoms/[^"]+">([^<]+)</a>', page)

    assert names("name=TASK-") == [f"task-{number}" for number in range(5)]
    assert names("name=task-&sort=-name") == [f"task-{number}" for number in range(4, -1, -1)]
    assert names("sort=began")[0] == "first" and names("sort=-began")[0] == "last"
    page = guest.get(f"{path}?sort=name").text
    assert 'aria-sort="ascending"' in page and f'href="{path}?sort=-name"' in page
    assert "No matching tasks" in guest.get(f"{path}?name=nobody").text
    refused(guest.get(f"{path}?sort=size"), 400, "took")
    refused(guest.get(f"{path}?name={'x' * 256}"), 400, "name must have at most 255")


def test_flows_in_the_graph_can_be_opened_and_closed(kept: story.Kept, guest: TestClient) -> None:
    path = f"/flows/{kept.uuids['good']}/graph"
    opened = guest.get(path).text
    (close,) = re.findall(r'href="([^"]+)" aria-label="Close inner"', opened)
    closed = guest.get(html.unescape(close)).text
    assert closed.count('class="atom kind-task') == 2 and "5 atoms" in closed
    (again,) = re.findall(r'href="([^"]+)" aria-label="Open inner, [^"]*"', closed)
    assert guest.get(html.unescape(again)).text.count('class="atom kind-task') == 7
    assert guest.get(f"{path}?open=x").status_code == 400


def test_groups_of_a_large_flow_in_the_graph_can_be_opened(
    kept: story.Kept, guest: TestClient
) -> None:
    """A box that represents several tasks links to them."""
    flow = unordered_flow.Flow("long").add(*(story.Fine(f"task-{n}") for n in range(900)))
    path = f"/flows/{kept.run('long', flow)}/graph"
    closed = guest.get(path).text
    tasks, parts = 'class="atom kind-task', 'class="atom kind-group'
    assert (closed.count(tasks), closed.count(parts)) == (0, 48)
    label = re.escape("Open task-19 … task-37, ")
    (link,) = re.findall(rf'href="([^"]+)" aria-label="{label}', closed)
    opened = guest.get(html.unescape(link)).text
    assert (opened.count(tasks), opened.count(parts)) == (19, 47)
    everything = guest.get(path, params={"open": list(range(901))}).text
    assert everything.count(tasks) <= 1_000 and everything.count(parts) < 48


def test_failures_tab_shows_their_number(kept: story.Kept, guest: TestClient) -> None:
    failures = re.compile(r'/failures"[^>]*>Failures <span class="count">1</span>')
    assert failures.search(guest.get(f"/flows/{kept.uuids['leaking']}").text)
    assert not failures.search(guest.get(f"/flows/{kept.uuids['good']}").text)


def test_error_page_has_links_only_after_login(guest: TestClient, stranger: TestClient) -> None:
    page = guest.get("/flows/00000000-0000-4000-8000-000000000000").text
    assert "Unknown flow" in page and 'href="/workers"' in page
    assert 'href="/workers"' not in stranger.get("/").text


def test_atom_page_shows_its_attempts(kept: story.Kept, guest: TestClient) -> None:
    uuid = kept.uuids["leaking"]
    atoms = guest.get(f"/api/v1/flows/{uuid}").json()["atoms"]
    begin = next(atom for atom in atoms if atom["name"].startswith("begin"))
    page = guest.get(f"/flows/{uuid}/atoms/{begin['uuid']}").text
    attempts = page.partition("<h2>Attempts</h2>")[2]
    assert attempts.index(">revert<") < attempts.index(">execute<")


def test_graph_timeline_and_events_are_shown(kept: story.Kept, guest: TestClient) -> None:
    uuid = kept.uuids["good"]
    graph = guest.get(f"/flows/{uuid}/graph").text
    assert graph.count('class="atom kind-task state-SUCCESS"') == 7
    timeline = guest.get(f"/flows/{uuid}/timeline").text
    assert timeline.count('class="attempt execute state-SUCCESS"') >= 1
    events = guest.get(f"/flows/{uuid}/events").text
    assert events.count("<li>") >= 7 and "task-3" in events


def test_graph_page_shows_a_tree_without_graphviz(
    kept: story.Kept, guest: TestClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    page = guest.get(f"/flows/{kept.uuids['good']}/graph").text
    text = html.unescape(page)
    assert "but the program dot is missing; install it with `apt-get install graphviz`" in text
    assert text.count("── ✔ task-") == 5
    assert 'class="atom' not in page


def test_map_page_lists_its_items(kept: story.Kept, guest: TestClient) -> None:
    uuid = kept.run("mapped", story.mapped(), {"numbers": [2, 3]})
    (atom,) = guest.get(f"/api/v1/flows/{uuid}").json()["atoms"]
    page = html.unescape(guest.get(f"/flows/{uuid}/atoms/{atom['uuid']}").text)
    rows = page.partition(">Items</h2>")[2].partition("</table>")[0].split("<tr>")[2:]
    assert len(rows) == 2
    assert '<td class="number-column">1</td>' in rows[0] and "ValueError: 3 is odd" in rows[0]
    assert '<td class="number-column">0</td>' in rows[1] and "ERROR" not in rows[1]
    assert "item 1: ValueError: 3 is odd" in guest.get(f"/flows/{uuid}/failures").text


def test_values_are_hidden_without_show_values(kept: story.Kept) -> None:
    path = f"/flows/{kept.uuids['good']}"
    with client(kept) as browser:
        atom = admitted(browser).get(f"/api/v1{path}").json()["atoms"][0]
        assert "fine" not in browser.get(f"{path}/atoms/{atom['uuid']}").text
        assert "characters" in atom["result"]
    with client(kept, show_values=True) as browser:
        page = admitted(browser).get(f"{path}/atoms/{atom['uuid']}").text
        assert "fine &lt;script&gt;" in page


def test_inputs_and_results_are_shown_as_trees() -> None:
    """Containers can be opened; secrets are masked, markup is escaped."""

    class Placed(task.Task):
        def execute(self, customer: Any, items: Any) -> Any:
            return {"lines": [{"sku": item} for item in items], "token": story.CANARY, "of": {}}

    flows = story.Kept()
    inputs = {"customer": {"name": story.SCRIPT, "since": 1815}, "items": ["tea", "milk"]}
    uuid = flows.run("order", linear_flow.Flow("order").add(Placed("place")), inputs)
    with client(flows, show_values=True) as browser:
        admitted(browser)
        page = browser.get(f"/flows/{uuid}").text
        (atom,) = re.findall(rf"/flows/{uuid}/atoms/([0-9a-f-]+)", page)[:1]
        atom_page = browser.get(f"/flows/{uuid}/atoms/{atom}").text
    assert re.search(
        r"<dt>customer</dt>.*?2 keys.*?<dt>since</dt><dd>.*?1815.*?2 items.*?tea", page
    )
    assert re.search(r"Result.*?3 keys.*?<dt>lines</dt>.*?2 items.*?1 key.*?sku.*?milk", atom_page)
    assert story.CANARY not in atom_page and story.SCRIPT not in page


def test_pages_without_broker_show_a_notice(guest: TestClient) -> None:
    for path in ("/workers", "/queues"):
        answer = guest.get(path)
        assert answer.status_code == 200
        assert "No broker" in answer.text
    assert guest.get("/api/v1/workers").status_code == 404


def test_part_of_a_page_is_returned_alone(kept: story.Kept, guest: TestClient) -> None:
    path = f"/flows/{kept.uuids['good']}"
    whole = guest.get(path).text
    for part, mark in (("head", 'id="head"'), ("body", 'id="body"')):
        text = guest.get(f"{path}?part={part}").text
        assert mark in text and "<html" not in text and len(text) < len(whole)
    assert "<html" not in guest.get("/?part=rows").text


def test_page_shows_the_current_record() -> None:
    """Views are cached; a page must not show an outdated one."""
    flows = story.Kept()
    flow = story.good(name="again")
    uuid = flows.run("again", flow)
    with client(flows) as browser:
        assert ">SUCCESS<" in admitted(browser).get(f"/flows/{uuid}").text
        detail = flows.see(lambda connection: connection.get_flow_details(uuid))
        atom = next(iter(detail))
        atom.state = "FAILURE"
        flows.see(lambda connection: connection.update_atom_details(atom))
        assert ">FAILURE<" in browser.get(f"/flows/{uuid}").text
        flows.see(lambda connection: connection.destroy_flow(uuid))
        assert browser.get(f"/flows/{uuid}").status_code == 404


def test_pages_of_1000_atoms_take_less_than_a_second() -> None:
    flows = story.Kept()
    flow = unordered_flow.Flow("wide").add(*(story.Fine(f"t{n}") for n in range(1000)))
    uuid = flows.run("wide", flow)
    with client(flows) as browser:
        admitted(browser)
        for page in ("", "/timeline", "/events", "/graph"):
            path = f"/flows/{uuid}{page}"
            assert browser.get(path).status_code == 200  # the first request reads all records
            assert cpu_time.minimum_seconds(lambda path=path: browser.get(path)) < 1.0, page  # type: ignore[misc]
        assert browser.get(f"/flows/{uuid}").text.count("data-uuid") >= 1000


@pytest.mark.slow
def test_nested_flows_are_collapsed_above_the_limit() -> None:
    flows = story.Kept()
    flow = unordered_flow.Flow("huge")
    for group in range(10):
        inner = unordered_flow.Flow(f"group-{group}")
        inner.add(*(story.Fine(f"g{group}-t{n}") for n in range(400)))
        flow.add(inner)
    uuid = flows.run("huge", flow)
    with client(flows) as browser:
        page = admitted(browser).get(f"/flows/{uuid}").text
        assert page.count('class="d1"') == 2 * 400  # two are open
        links = re.findall(r'href="(/flows/[^"]+\?under=\d+)"', page)
        assert len(links) == 8 and "400 tasks" in page
        inside = browser.get(links[-1]).text
        assert inside.count('class="d0"') == 400
        graph = browser.get(f"/flows/{uuid}/graph").text
        assert graph.count("collapsed") == 10
        opened = re.findall(r'href="([^"]+)" aria-label="Open group-3, ', graph)
        graph = browser.get(html.unescape(opened[0])).text
        assert graph.count("Open group-") == 9 and "g3-t0 … g3-t8" in graph
        assert browser.get(f"/flows/{uuid}?under=99999").status_code == 404


def test_pages_link_parent_and_children(store: base.Backend, tmp_path: Path) -> None:
    inputs = {"folder": str(tmp_path), "items": ["tea", "cup"]}
    engine = engines.load(child_flows.order, inputs, backend=store)
    engine.run()
    parent = engine.storage.flow_uuid
    with client(store) as opened:
        browser = admitted(opened)
        page = browser.get(f"/flows/{parent}").text
        assert f"parent={parent}" in page and "2 SUCCESS" in page
        listed = browser.get("/", params={"parent": parent}).text
        assert listed.count("child_flows.ship") >= 2 and "child_flows.order<" not in listed
        (first, second) = browser.get("/api/v1/flows", params={"parent": parent}).json()["flows"]
        assert first["parent"] == second["parent"] == parent
        assert f"/flows/{parent}" in browser.get(f"/flows/{first['uuid']}").text


def test_open_request_is_a_displayed_state_with_a_filter(store: base.Backend) -> None:
    uuid, other = requested.failed(store).id, requested.failed(store).id
    operations.request(store, uuid, "retry", by="ann")
    with client(store, token=None) as browser:
        rows = browser.get("/api/v1/flows?state=REQUESTED").json()["flows"]
        assert [(row["uuid"], row["shown_state"]) for row in rows] == [(uuid, "REQUESTED")]
        page = browser.get("/?state=REQUESTED").text
        assert uuid in page and other not in page and "state-REQUESTED" in page
        assert "state-REQUESTED" in browser.get(f"/flows/{uuid}").text
        body = {"filter": {"states": ["REQUESTED"]}, "dry_run": True}
        assert browser.post("/api/v1/flows/suspend", json=body).status_code in (200, 403)
