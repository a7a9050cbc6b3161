"""Random flows of `tools/simulate`, and its report of a failing seed."""

from __future__ import annotations

import argparse
import re
import runpy

import pytest

from tests.property import lives
from tests.support import tools
from wbengine._runtime.decisions import DecisionPoints


@pytest.mark.slow
def test_random_flows_run_in_processes_without_failures() -> None:
    ended = tools.run("simulate", "--flows", 250, "--seed", 7, "--jobs", 2)
    assert ended.stdout.startswith("250 flows in "), ended.stdout
    assert ended.stdout.endswith("/s), no failures\n")
    # A progress line every ten seconds, if the run takes that long.
    for line in ended.stderr.splitlines():
        assert re.fullmatch(r"\d+/250 flows, \d+/s, \d+:\d\d left", line)


@pytest.mark.slow
def test_failing_seed_is_reported_with_shrunk_flow(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def open_to_all(self: DecisionPoints, node: int) -> bool:
        return False

    monkeypatch.setattr(DecisionPoints, "must_decide", open_to_all)
    monkeypatch.syspath_prepend(str(tools.FOLDER))
    tool = runpy.run_path(str(tools.FOLDER / "simulate"))
    options = argparse.Namespace(flows=100, seed=0, jobs=1)
    assert tool["simulate"](options) == 1
    output = capsys.readouterr().out
    first = output.splitlines()[0]
    seed = int(first.split()[1])
    assert first == f"seed {seed} fails (tools/simulate --seed {seed} --flows 1)"
    assert output.splitlines()[1] == "a smaller flow that fails too:"
    assert output.splitlines()[-1].startswith("AssertionError")
    with pytest.raises(AssertionError, match=f"WBENGINE_SEED={seed}:"):
        lives.live(seed)
    story = output.splitlines()[2:-1]
    # The smallest flow has one link with a decider: a successful source and an undecided target.
    assert story[1].split()[0] == story[2].split()[0] == "atom"
    assert len(story) <= 6, output
