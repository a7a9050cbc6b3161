"""`wbengine flow list`, `show`, `watch`, `events`, `export`, and `wbengine graph`."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

from tests.cli.conftest import ORDER, Command, slow_flow
from tests.cli.shop import STEPS
from wbengine.persistence import backends
from wbengine.persistence.models import FlowDetail, LogBook

pytestmark = pytest.mark.usefixtures("quiet_store")


@pytest.fixture
def good(wbengine: Command) -> str:
    return str(wbengine("flow", "run", ORDER).json["uuid"])


@pytest.fixture
def bad(wbengine: Command, home: Path) -> str:
    (home / "broken").touch()
    uuid = str(wbengine("flow", "run", ORDER).json["uuid"])
    (home / "broken").unlink()
    return uuid


# list -------------------------------------------------------------------------------------------


def listed(wbengine: Command, *words: str) -> list[str]:
    answer = wbengine("flow", "list", "--json", *words)
    assert (answer.code, answer.json["schema"]) == (0, "wbengine/flow-ls/1")
    return [flow["uuid"] for flow in answer.json["flows"]]


def test_flow_list_filters_by_state_name_and_time(wbengine: Command, good: str, bad: str) -> None:
    assert listed(wbengine) == [bad, good]
    assert listed(wbengine, "--sort", "oldest") == [good, bad]
    assert listed(wbengine, "--state", "reverted") == [bad]
    assert listed(wbengine, "--state", "SUCCESS", "--state", "REVERTED") == [bad, good]
    assert listed(wbengine, "--name", "rDE") == [bad, good]
    assert listed(wbengine, "--name", "other") == []
    assert listed(wbengine, "--since", "1h") == [bad, good]
    assert listed(wbengine, "--since", "0s") == []
    assert listed(wbengine, "--since", "2999-01-01") == []


def test_flow_list_continues_after_a_cursor(wbengine: Command, good: str, bad: str) -> None:
    first = wbengine("flow", "list", "--limit", "1", "--json").json
    assert [flow["uuid"] for flow in first["flows"]] == [bad]
    assert listed(wbengine, "--limit", "1", "--after", first["after"]) == [good]
    wbengine.fails(2, "'nonsense'", "flow", "list", "--after", "nonsense")


# show -------------------------------------------------------------------------------------------


def test_flow_show_prints_tree_and_failure(wbengine: Command, bad: str) -> None:
    answer = wbengine("flow", "show", bad[:8])
    assert answer.code == 0
    assert f"order  {bad}" in answer.out
    for name in ("reserve", "pay", "pack"):
        assert re.search(rf"── \S {name}  (failed, )?reverted  (?!attempt)", answer.out)
    assert re.search(r"── \S send  tests.cli.shop.Step$", answer.out, re.MULTILINE)
    assert "failed: pack, attempt 1, on local: ValueError: out of paper" in answer.out
    assert "canary" not in answer.out and "Traceback" not in answer.out


def test_flow_of_a_single_task_is_shown(wbengine: Command) -> None:
    """The task runs without a flow around it."""
    flow = wbengine("flow", "run", "tests.cli.shop:single").json["uuid"]
    assert "1 of 1 task done" in wbengine("flow", "show", flow).out
    assert "<svg" in wbengine("flow", "export", flow, "--html").out


def test_flow_show_prints_the_requested_parts(wbengine: Command, bad: str) -> None:
    output = wbengine("flow", "show", bad, "--traceback").out
    assert "Traceback (most recent call last):" in output and "tests/cli/shop.py" in output
    assert "── " not in output and "canary" not in output
    output = wbengine("flow", "show", bad, "--timeline").out
    rows = [line.split() for line in output.splitlines() if re.match(r"\d{4}-", line)]
    assert [(row[-4], row[-2], row[-1]) for row in rows] == [
        ("reserve", "execute", "SUCCESS"),
        ("pay", "execute", "SUCCESS"),
        ("pack", "execute", "FAILURE"),
        ("pack", "revert", "REVERTED"),
        ("pay", "revert", "REVERTED"),
        ("reserve", "revert", "REVERTED"),
    ]
    assert "── " in wbengine("flow", "show", bad, "--tree").out


def test_values_are_shown_only_with_show_values(wbengine: Command) -> None:
    store = json.dumps({"amount": 4, "api_key": "canary"})
    flow = wbengine("flow", "run", "tests.cli.shop:priced", "--inputs", store).json["uuid"]
    hidden = wbengine("flow", "show", flow, "--inputs").out
    assert "amount" in hidden and not re.search(r"amount +4", hidden)
    shown = wbengine("flow", "show", flow, "--inputs", "--show-values").out
    assert re.search(r"amount +4", shown)
    assert re.search(r"amount +4", wbengine("flow", "show", flow, "--show-values").out)
    assert not re.search(r"amount +4", wbengine("flow", "show", flow).out)
    assert "canary" not in hidden + shown + wbengine("flow", "show", flow, "--json").out


def test_flow_show_prints_json(wbengine: Command, bad: str) -> None:
    data = wbengine("flow", "show", bad, "--json").json
    assert (data["schema"], data["uuid"]) == ("wbengine/flow-show/1", bad)
    assert (data["state"], data["total"]) == ("REVERTED", 4)
    assert [atom["name"] for atom in data["atoms"]] == ["reserve", "pay", "pack", "send"]
    assert data["created"].endswith("Z") and isinstance(data["duration"], float)


def test_flow_that_never_ran_shows_that_it_waits(wbengine: Command, home: Path) -> None:
    book = LogBook("mine")
    book.add(FlowDetail("never run"))
    with (
        backends.backend(f"dir://{home}/flows") as backend,
        backend.get_connection() as connection,
    ):
        connection.save_logbook(book)
    (flow,) = listed(wbengine)
    assert "waits" in wbengine("flow", "show", flow).out


# watch and events -------------------------------------------------------------------------------


def test_watch_of_finished_flow_prints_all_events(wbengine: Command, good: str, bad: str) -> None:
    answer = wbengine("flow", "watch", good)
    assert answer.code == 0
    assert answer.out.splitlines()[-1].endswith("SUCCESS  flow order")
    answer = wbengine("flow", "watch", bad, "--json")
    assert answer.code == 1
    events = answer.lines
    assert {event["schema"] for event in events} == {"wbengine/flow-watch/1"}
    states = [event["state"] for event in events if event["name"] == "pack"]
    assert states == ["RUNNING", "FAILURE", "REVERTING", "REVERTED"]
    assert "canary" not in answer.out


def test_watch_continues_from_a_cursor(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    (flow,) = listed(wbengine)
    watch = wbengine.begin("flow", "watch", flow, "--json", "--interval", "0.05")
    assert watch.stdout is not None
    cursor, before = None, []
    while cursor is None:
        before.append(json.loads(watch.stdout.readline()))
        cursor = before[-1]["cursor"]
    watch.terminate()
    watch.communicate(timeout=60)
    (home / "go").touch()
    process.communicate(timeout=60)
    answer = wbengine("flow", "watch", flow, "--json", "--cursor", cursor)
    assert answer.code == 0
    after = [(event["name"], event["state"]) for event in answer.lines]
    began = {(event["name"], event["state"]) for event in before}
    assert began == {("slow", "RUNNING"), ("reserve", "RUNNING")}
    wanted = {(name, state) for name in STEPS for state in ("RUNNING", "SUCCESS")}
    assert {*after, *began} == wanted | {("slow", "RUNNING"), ("slow", "SUCCESS")}
    last = answer.lines[-1]["cursor"]
    again = wbengine("flow", "watch", flow, "--json", "--cursor", last)
    assert {event["kind"] for event in again.lines} <= {"flow"}


def test_watch_ends_when_the_flow_is_suspended(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    process.terminate()
    assert process.stderr is not None and process.stderr.readline()
    (home / "go").touch()
    process.communicate(timeout=60)
    (flow,) = listed(wbengine)
    answer = wbengine("flow", "watch", flow, "--no-json")
    assert answer.code == 75
    assert answer.out.splitlines()[-1].endswith("SUSPENDED  flow slow")


def test_watch_ends_when_the_engine_dies(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    (flow,) = listed(wbengine)
    watch = wbengine.begin("flow", "watch", flow, "--json", "--interval", "0.05")
    assert watch.stdout is not None and watch.stdout.readline()
    process.kill()
    process.communicate(timeout=60)
    watch.communicate(timeout=60)
    assert watch.returncode == 75


def test_flow_of_a_dead_engine_is_listed_as_interrupted(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)

    def states() -> list[str]:
        return [row.split()[2] for row in wbengine("flow", "list").out.splitlines()[1:]]

    assert states() == ["RUNNING"]
    process.kill()
    process.communicate(timeout=60)
    assert states() == ["INTERRUPTED"]
    (flow,) = wbengine("flow", "list", "--json").json["flows"]
    assert (flow["state"], flow["interrupted"]) == ("RUNNING", True)
    assert listed(wbengine, "--state", "interrupted") == [flow["uuid"]]
    assert listed(wbengine, "--state", "waiting", "--state", "cancelling") == []
    assert "INTERRUPTED" in wbengine("flow", "show", flow["uuid"]).out


def test_map_items_are_listed_and_failures_name_the_item(wbengine: Command, home: Path) -> None:
    wbengine("flow", "run", "tests.cli.shop:halves", "--inputs", '{"numbers": [2, 3]}')
    (flow,) = listed(wbengine)
    output = wbengine("flow", "show", flow, "--show-values").out
    table = output.partition("items of halves:\n")[2].splitlines()
    assert table[0].split() == ["ITEM", "INPUT", "STATE", "WORKER", "TOOK", "TRIES", "ERROR"]
    failed = table[1].split()
    assert failed[:2] == ["1", "3"] and table[1].endswith("ValueError: 3 is odd")
    assert table[2].split()[:2] == ["0", "2"]
    assert "failed: halves, attempt 1, on local: item 1: ValueError: 3 is odd" in output
    (item, *_) = wbengine("flow", "show", flow, "--json").json["atoms"][0]["item_rows"]
    assert (item["index"], item["tries"]) == (1, 1)


def test_flow_show_results_prints_whole_values_without_secrets(wbengine: Command) -> None:
    given = json.dumps({"api_key": "canary-1234"})
    run = wbengine("flow", "run", "tests.cli.shop:welcome", "--inputs", given)
    answer = wbengine("flow", "show", run.json["uuid"], "--results")
    assert answer.json == {
        "schema": "wbengine/flow-results/1",
        "uuid": run.json["uuid"],
        "name": "welcome",
        "state": "SUCCESS",
        "results": {"url": {"at": ["https://me:***@host", "with ***", "x" * 5000]}},
        "steps": {},
    }


def test_ctrl_c_ends_watch(wbengine: Command, home: Path) -> None:
    process = slow_flow(wbengine)
    (flow,) = listed(wbengine)
    watch = wbengine.begin("flow", "watch", flow, "--json")
    assert watch.stdout is not None and watch.stdout.readline()
    watch.send_signal(2)
    _, err = watch.communicate(timeout=60)
    assert (watch.returncode, json.loads(err)["error"]) == (130, "interrupted")
    (home / "go").touch()
    process.communicate(timeout=60)
    assert process.returncode == 0


def test_events_are_printed_in_order(wbengine: Command, bad: str) -> None:
    events = wbengine("flow", "events", bad, "--json").lines
    assert events[0]["kind"] == "flow" and events[-1]["state"] == "REVERTED"
    moments = [event["at"] for event in events]
    assert moments == sorted(moments)
    rows = wbengine("flow", "events", bad).out.splitlines()
    assert len(rows) == len(events) + 1
    assert "canary" not in "".join(rows)


@pytest.mark.parametrize("flow", ["login", "welcome"])
def test_secrets_appear_in_no_output(flow: str, wbengine: Command, home: Path) -> None:
    """Secrets are masked even without a key: in messages, tracebacks and results."""
    store = json.dumps({"api_key": "canary-4711"})
    answers = [wbengine("flow", "run", f"tests.cli.shop:{flow}", "--inputs", store, "--progress")]
    uuid = answers[0].json["uuid"]
    for words in (
        ("flow", "list"),
        ("flow", "show", uuid),
        ("flow", "show", uuid, "--traceback", "--timeline", "--inputs", "--show-values"),
        ("flow", "watch", uuid),
        ("flow", "events", uuid),
        ("flow", "export", uuid, "--html", "--show-values"),
        *(("graph", "--flow-id", uuid, "-f", form) for form in FORMATS),
        *((("flow", "retry", uuid, "--progress"),) if flow == "login" else ()),
    ):
        answers += [wbengine(*words), wbengine(*words, "--json")]
    assert "x" * 5000 in answers[0].out or flow == "login"
    for answer in answers:
        assert answer.out, answer
        assert "canary" not in answer.out + answer.err


# export and graph -------------------------------------------------------------------------------


def test_exported_flow_is_imported_into_another_store(wbengine: Command, bad: str) -> None:
    wbengine.fails(2, "--output is required", "flow", "export", bad)
    (wbengine.folder / "x.json").touch(0o644)
    assert wbengine("flow", "export", bad, "--output", "x.json").out == ""
    data = json.loads((wbengine.folder / "x.json").read_text())
    assert data["schema"] == "wbengine/flow-export/2" and data["flow"]["uuid"] == bad
    assert (wbengine.folder / "x.json").stat().st_mode & 0o777 == 0o600
    other = ("--persistence", f"sqlite:///{wbengine.folder}/other.db")
    answer = wbengine("flow", "import", "x.json", *other)
    assert (answer.code, bad in answer.out) == (0, True), answer.err
    assert wbengine("flow", "export", bad, *other, "-o", "y.json").code == 0
    assert json.loads((wbengine.folder / "y.json").read_text()) == data
    wbengine.fails(1, "already exists", "flow", "import", "x.json", *other)
    (wbengine.folder / "x.json").write_text("{}")
    none = wbengine("flow", "import", "x.json", *other)
    assert none.code == 2 and "must be an exported flow: missing key 'schema'" in none.error
    assert wbengine("flow", "import", "z.json", *other).code == 2
    (wbengine.folder / "x.json").write_text("[" * 200_000)
    assert wbengine("flow", "import", "x.json", *other).code == 2


def test_flow_is_exported_as_html(wbengine: Command, home: Path, bad: str) -> None:
    assert wbengine("flow", "export", bad, "--html", "-o", "x.html").code == 0
    page = (home / "x.html").read_text()
    wbengine("flow", "export", bad, "--html", "--show-values", "-o", "values.html")
    assert (home / "values.html").stat().st_mode & 0o777 == 0o600
    assert "<svg" in page and "canary" not in page
    answer = wbengine("flow", "export", bad, "-o", "none/x.json")
    assert answer.code == 2 and "must be a path in an existing folder" in answer.error
    wbengine.fails(2, "--html", "flow", "export", bad, "--show-values")


FORMATS = {
    "text": lambda text: "pay" in text,
    "mermaid": lambda text: text.startswith(("flowchart", "graph")) or "flowchart" in text,
    "dot": lambda text: text.startswith("digraph") or "digraph" in text,
    "json": lambda text: json.loads(text)["schema"] == "wbengine/graph/1",
    "svg": lambda text: ET.fromstring(text).tag.endswith("svg"),
}


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("kept", [True, False])
def test_flow_is_drawn_in_each_format(form: str, kept: bool, wbengine: Command, bad: str) -> None:
    which: tuple[str, ...] = ("--flow-id", bad[:8]) if kept else (ORDER,)
    answer = wbengine("graph", *which, "-f", form)
    assert (answer.code, answer.err) == (0, "")
    check: Any = FORMATS[form]
    assert check(answer.out)
    for name in ("reserve", "pay", "pack", "send"):
        assert name in answer.out
    assert "canary" not in answer.out
    ending = {"mermaid": "mmd", "text": "txt"}.get(form, form)
    assert wbengine("graph", *which, "-o", f"x.{ending}").out == ""
    assert (wbengine.folder / f"x.{ending}").read_text() == answer.out


def test_no_states_option_omits_states(wbengine: Command, bad: str) -> None:
    assert "reverted" in wbengine("graph", "--flow-id", bad).out
    assert "reverted" not in wbengine("graph", "--flow-id", bad, "--no-states").out


def test_graph_is_written_as_png(wbengine: Command, home: Path) -> None:
    assert wbengine("graph", ORDER, "-o", "x.png").code == 0
    assert (home / "x.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("name", "near"), [("x.jpg", ".png"), ("x.svgz", ".svg")])
def test_unknown_file_extension_is_refused(name: str, near: str, wbengine: Command) -> None:
    answer = wbengine("graph", ORDER, "-o", name)
    assert (answer.code, answer.out, (wbengine.folder / name).exists()) == (2, "", False)
    assert f"got '{name[1:]}' (did you mean '{near}'?)" in answer.error
    assert (
        "must end in one of .txt, .text, .mmd," in answer.error
        and len(answer.err.splitlines()) == 1
    )
    assert wbengine("graph", ORDER, "-o", name, "-f", "text").code == 0


@pytest.mark.parametrize("name", ["x", "x.txt"])
def test_file_without_image_extension_contains_the_tree(name: str, wbengine: Command) -> None:
    assert wbengine("graph", ORDER, "-o", name).code == 0
    assert (wbengine.folder / name).read_text() == wbengine("graph", ORDER).out


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_missing_graphviz_prints_the_tree_and_how_to_install_it(
    ending: str, wbengine: Command, home: Path, bad: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(home))
    answer = wbengine("graph", "--flow-id", bad, "-o", f"x.{ending}")
    assert (answer.code, answer.out) == (1, "")
    *tree, error = answer.err.splitlines()
    assert "REVERTED" in tree[0] and any("reserve" in row for row in tree[1:])
    assert error == (
        "wbengine graph: error: SVG and PNG need Graphviz, but the program dot is missing; install"
        " it with `apt-get install graphviz` or `brew install graphviz`"
    )
    assert not (home / f"x.{ending}").exists()
    for form in ("text", "mermaid", "dot", "json"):
        assert wbengine("graph", "--flow-id", bad, "-f", form).code == 0


def test_html_export_contains_the_tree_without_graphviz(wbengine: Command, bad: str) -> None:
    wbengine.setenv("PATH", str(wbengine.folder))
    page = wbengine("flow", "export", bad, "--html").out
    assert "install it with `apt-get install graphviz`" in page
    assert "├── " in page and 'wbe-graph"' not in page


def test_json_option_selects_the_json_format(wbengine: Command) -> None:
    assert wbengine("graph", ORDER, "--json").json["schema"] == "wbengine/graph/1"
