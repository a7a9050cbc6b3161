"""Texts of flows on terminals and in logs: control characters are escaped."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from tests.cli import hostile
from tests.cli.conftest import Answer, Command
from tests.support import python
from tests.support.terminals import Terminal
from tests.support.workers import REPOSITORY, until, workers
from wbengine import engines
from wbengine.listeners.printing import PrintingListener
from wbengine.listeners.progress import ProgressListener

#: Characters that must not appear in output.
CONTROL = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
)
#: Sequences that this program sends to a terminal: colors, cursor moves and erasing.
OURS = re.compile(r"\x1b\[\??[0-9;]*[mhlAK]|\x1b\[[0-9;]*H|\r")
FORGED = re.compile(r"^(└── forged|2026-01-01)", re.MULTILINE)


def check(output: str, *, ours: bool = False, whole: bool = False) -> None:
    """Check that the output contains no control characters.

    :param whole: The output contains a traceback or a page, whose lines come from the text.
    """
    assert output
    match = CONTROL.search(OURS.sub("", output) if ours else output)
    around = "" if match is None else output[max(0, match.start() - 100) : match.end() + 100]
    assert match is None, repr(around)
    assert whole or not FORGED.search(output), output


def escaped(output: str) -> bool:
    return r"\x1b]0;title\x07\x1b[2J" in output and r"\u202e" in output


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Run a flow and a workflow that fail; return their stores and ids."""
    stored = {}
    for name in ("flow", "published"):
        store = f"dir://{tmp_path_factory.mktemp('hostile') / 'flows'}"
        words = ("--persistence", store, "flow", "run", f"tests.cli.hostile:{name}")
        command = ["-m", "wbengine", *words]
        ended = python.run(command, cwd=REPOSITORY, capture_output=True, check=False)
        assert ended.returncode == 1
        stored[name] = store, str(json.loads(ended.stdout)["uuid"])
    return stored


@pytest.fixture
def failed(
    kept: dict[str, tuple[str, str]],
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> str:
    """Return the id of the failed flow, or of the workflow; no test changes it."""
    store, uuid = kept[getattr(request, "param", "flow")]
    monkeypatch.setenv("WBENGINE_PERSISTENCE", store)
    return uuid


OF_WORKFLOWS = pytest.mark.parametrize("failed", ["published"], indirect=True)


def run(wbengine: Command, name: str, *words: str) -> Answer:
    answer = wbengine.apart("flow", "run", f"tests.cli.hostile:{name}", *words)
    assert answer.code == (0 if name == "good" else 1)
    return answer


@pytest.mark.parametrize("name", ["flow", "good"])
@pytest.mark.parametrize("color", ["never", "always"])
def test_flow_run_escapes_control_characters(name: str, color: str, wbengine: Command) -> None:
    answer = run(wbengine, name, "--progress", "--color", color)
    check(answer.out)
    check(answer.err, ours=color == "always")
    assert escaped(answer.err) and f"runs {hostile.ORDERS}" not in answer.err
    assert answer.json["name"] == f"flow {hostile.ORDERS}"


@pytest.mark.parametrize(
    "words",
    [
        "flow list",
        "flow list --json",
        "flow show ID",
        "flow show ID --json",
        "flow show ID --traceback",
        "flow show ID --timeline",
        "flow show ID --inputs --show-values",
        "flow show ID --tree --color always",
        "flow watch ID",
        "flow watch ID --json",
        "flow events ID",
        "flow events ID --json",
        "flow logs ID",
        "flow logs ID --json",
        "flow export ID --html",
        "flow retry ID --dry-run",
        "flow retry ID --log-format json",
        "flow suspend ID",
        "flow delete ID --dry-run",
        "graph --flow-id ID",
        "graph --flow-id ID --format dot",
        "graph --flow-id ID --format mermaid",
        "graph --flow-id ID --format svg",
        "graph --flow-id ID --format json",
        "flow prune --older-than 0s --dry-run",
    ],
)
def test_command_escapes_control_characters(words: str, failed: str, wbengine: Command) -> None:
    answer = wbengine(*(failed if word == "ID" else word for word in words.split()))
    assert answer.code != 2, answer.err
    shown = answer.out + answer.err
    is_page = "html" in words or "svg" in words
    check(
        shown.replace("\t", "") if is_page else shown,
        ours="always" in words,
        whole=is_page or "traceback" in words,
    )


def test_error_message_escapes_control_characters(wbengine: Command) -> None:
    answer = wbengine("graph", "tests.cli.hostile:broken")
    assert answer.code == 2
    check(answer.err)
    assert escaped(answer.error)


@pytest.mark.parametrize("words", ["flow run tests.cli.hostile:flow", "flow watch ID", "flow list"])
def test_terminal_receives_only_our_own_control_sequences(
    words: str, failed: str, home: Path
) -> None:
    named = [failed if word == "ID" else word for word in words.split()]
    with Terminal("-m", "wbengine", *named, folder=home, columns=200) as terminal:
        terminal.end()
    received = terminal.output.decode()
    check(received.replace("\r\n", "\n"), ours=True)
    assert escaped(received)


def test_listeners_escape_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    engine = engines.load(hostile.flow())
    with PrintingListener(engine), pytest.raises(ValueError, match="fails"):
        engine.run()
    output = capsys.readouterr().out
    stream = io.StringIO()
    console = Console(file=stream, force_terminal=True, width=400)
    engine = engines.load(hostile.flow())
    with ProgressListener(engine, console, live=True), pytest.raises(ValueError, match="fails"):
        engine.run()
    check(output, whole=True)
    check(stream.getvalue(), ours=True)
    assert escaped(output) and "Traceback" in output and escaped(stream.getvalue())


def test_worker_escapes_control_characters(wbengine: Command, home: Path, tmp_path: Path) -> None:
    url = f"filesystem://{home}/broker"
    arguments = ("--url", url, "--topic", "t", "--tasks", "tests.cli.hostile", "--log-level")
    with workers(tmp_path, *arguments, "debug") as (worker,):
        until(lambda: wbengine("workers", "list", "--json", "--url", url).json["workers"])
        engine = engines.load(hostile.flow(), engine="worker-based", url=url, topics=["t"])
        with pytest.raises(ValueError, match="fails"):
            engine.run()
        listed = "workers list", "workers show", "status", "queues list", "workers list --json"
        for words in listed:
            answer = wbengine(*words.split(), "--url", url)
            check(answer.out + answer.err)
        until(lambda: "fails" in worker.text)
        worker.stop()
        check(worker.text)
        assert escaped(worker.text)


@OF_WORKFLOWS
@pytest.mark.parametrize(
    "words",
    [
        "flow get ID",
        "flow get ID --json",
        "flow show ID",
        "flow show ID --json",
        "flow show ID --timeline",
        "flow watch ID",
        "flow events ID",
        "flow export ID --html",
    ],
)
def test_texts_of_workflows_are_escaped(words: str, failed: str, wbengine: Command) -> None:
    answer = wbengine(*(failed if word == "ID" else word for word in words.split()))
    assert answer.code in (0, 1)
    is_page = "html" in words
    check(answer.out.replace("\t", "") if is_page else answer.out, whole=is_page)
    assert "json" in words or "get" in words or is_page or escaped(answer.out)


@OF_WORKFLOWS
def test_single_published_value_is_escaped(failed: str, wbengine: Command) -> None:
    answer = wbengine("flow", "get", failed, "progress")
    check(answer.out)
    assert json.loads(answer.out)[0] == hostile.ORDERS
