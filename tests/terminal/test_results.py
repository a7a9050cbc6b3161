"""The results that `flow run` prints on a terminal, and tracebacks of failures in user code."""

from __future__ import annotations

import contextlib
import json
import re

import pytest

from tests.support.terminals import CTRL_C
from tests.terminal.conftest import Shop
from tests.terminal.flows import MAP_ITEMS

UUID = "22222222-0000-4000-8000-000000000001"


def test_long_results_are_shortened_on_terminal_and_stay_whole_elsewhere(shop: Shop) -> None:
    shop.go()
    run = shop.run(f"flow run :numbers --flow-id {UUID}", lines=120)
    text = run.scrollback
    result = json.loads(text[text.index("{") : text.rindex("}") + 1])["results"]["halved"]
    assert result == [*range(20), f"... and {MAP_ITEMS - 20} more"]
    command = f"wbengine flow show {UUID} --results"
    assert f"all: {command}" in " ".join(run.scrollback.split())
    shown = shop.run(command.partition(" ")[2], lines=1000)
    whole = json.loads(shown.text)["results"]["halves"]
    assert len(whole) == MAP_ITEMS and whole[98:100] == [98, "<Failure: ValueError: 99 is bad>"]
    with shop.terminal("flow run :numbers", piped=True) as piped:
        assert piped.end() == 0
    assert len(json.loads(piped.piped_output)["results"]["halved"]) == MAP_ITEMS
    assert "are shown" not in piped.scrollback


USER_FRAME = re.compile(r'  File "[^"]*/flows\.py", line \d+, in execute\n')
RAISED = '    raise ValueError("out of paper")'


@pytest.mark.parametrize("engine", ["serial", "workers"])
def test_failed_run_shows_frames_of_user_and_next_command(engine: str, shop: Shop) -> None:
    with shop.worker() if engine == "workers" else contextlib.nullcontext():
        run = shop.run(f"flow run :fails --flow-id {UUID} --engine {engine}", columns=120)
    assert run.process.returncode == 1
    text = run.scrollback
    assert "failed: print: ValueError: out of paper" in text
    assert USER_FRAME.search(text) and RAISED in text
    *_, last = text.splitlines()
    assert last == f"REVERTED; details: wbengine flow show {UUID}"
    shown = shop.run(last.partition("wbengine ")[2], columns=120, lines=40).text
    assert USER_FRAME.search(shown) and RAISED in shown
    *_, last = shown.splitlines()
    assert last == f"all frames: wbengine flow show {UUID} --traceback"
    whole = shop.quietly(last.partition("wbengine ")[2])
    assert "/wbengine/_calls/invocation.py" in whole and USER_FRAME.search(whole)


@pytest.mark.slow
def test_retry_with_another_broker_names_the_broker_of_the_previous_run(shop: Shop) -> None:
    with shop.worker():
        shop.run(f"flow run :fails --flow-id {UUID} --engine workers", columns=120)
        same = shop.run(f"flow retry {UUID}", columns=200)
    assert "failed: print: ValueError: out of paper" in same.scrollback
    first = shop.environment["WBENGINE_URL"]
    shop.environment["WBENGINE_URL"] = f"filesystem://{shop.folder}/other"
    with shop.worker():
        refused = shop.run(f"flow retry {UUID}", columns=250)
        chosen = shop.run(f"flow retry {UUID} --engine workers", columns=250)
    assert f"last ran with the broker {first}: use this broker, or" in refused.scrollback
    assert "failed: print" not in refused.scrollback
    assert "failed: print: ValueError: out of paper" in chosen.scrollback


def test_run_with_traceback_shows_all_frames(shop: Shop) -> None:
    with shop.terminal("flow run :fails --traceback", columns=120, checked=False) as run:
        run.end()
    assert USER_FRAME.search(run.scrollback)
    assert "/wbengine/_calls/invocation.py" in run.scrollback


def test_serve_logs_frames_of_user(shop: Shop) -> None:
    shop.quietly("flow submit :fails")
    with shop.terminal("serve", columns=120, lines=40) as serve:
        serve.wait_for("ValueError: out of paper")
        assert USER_FRAME.search(serve.text.replace("\n    ", "\n"))
        serve.press(CTRL_C)
        assert serve.end() == 0


def test_broken_factory_is_named_with_its_place(shop: Shop) -> None:
    run = shop.run("flow run :broken_factory")
    assert run.process.returncode == 2
    message = " ".join(run.scrollback.split())
    assert re.search(
        r"RuntimeError: no flow today \(flows\.py, line \d+, in broken_factory\)$", message
    )
