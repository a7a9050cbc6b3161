"""Small versions of `tools/crash`: kills at crash points and random times, races, full disks."""

from __future__ import annotations

import re
import sys

import pytest

from tests.support import tools

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="it kills by ways of Linux's own"),
]


@pytest.mark.slow
def test_flow_killed_at_any_crash_point_is_resumed() -> None:
    output = tools.run("crash", "sweep", "--quick").stdout
    figures = re.search(r"^(\d+) points, (\d+) cases, .* 0 problems$", output, re.MULTILINE)
    assert figures and int(figures[2]) >= int(figures[1]) > 20, output


@pytest.mark.slow
def test_workflow_killed_at_any_crash_point_is_resumed() -> None:
    output = tools.run("crash", "sweep", "--quick", "--workflows").stdout
    figures = re.search(r"^\d+ points, (\d+) cases, .* 0 problems$", output, re.MULTILINE)
    assert figures and int(figures[1]) > 60, output


@pytest.mark.slow
@pytest.mark.parametrize("count", [8, pytest.param(80, marks=pytest.mark.slow(long=True))])
def test_steps_in_flight_when_engine_is_killed_are_undone(count: int) -> None:
    words = ("sweep", "--workflows", "--in-flight", count, "--seed", count, "--jobs", 2)
    output = tools.run("crash", *words).stdout
    line = r"^(\d+) cases, .*done and not undone 0, undone and not done 0, .* 0 problems$"
    figures = re.search(line, output, re.MULTILINE)
    assert figures and int(figures[1]) == count, output


@pytest.mark.slow
@pytest.mark.parametrize("count", [12, pytest.param(100, marks=pytest.mark.slow)])
def test_parents_children_and_forks_end_as_without_kill(count: int) -> None:
    words = ("sweep", "--workflows", "--children", count, "--stores", "sqlite", "--seed", count)
    output = tools.run("crash", *words).stdout
    figures = re.search(r"^\d+ points, (\d+) cases, .* 0 problems$", output, re.MULTILINE)
    assert figures and int(figures[1]) == count, output


@pytest.mark.slow
def test_sweep_reports_forgotten_steps() -> None:
    words = ("sweep", "--workflows", "--in-flight", 60, "--forget", "--jobs", 2)
    output = tools.run("crash", *words, code=1).stdout
    figures = re.search(r"done and not undone (\d+),", output)
    assert figures and int(figures[1]) > 0, output


@pytest.mark.parametrize(
    ("flows", "kills", "options"),
    [(3, 3, ()), pytest.param(8, 12, ("--workflows",), marks=pytest.mark.slow)],
    ids=["flows", "workflows"],
)
def test_flows_survive_repeated_kills(flows: int, kills: int, options: tuple[str, ...]) -> None:
    words = ("storm", "--flows", flows, "--kills", kills, "--stores", "dir,sqlite", *options)
    output = tools.run("crash", *words).stdout
    assert re.search(rf"^{flows} flows, {kills} kills, .* 0 problems$", output, re.M), output


@pytest.mark.slow
def test_no_flow_runs_again_after_operations_raced() -> None:
    output = tools.run("crash", "races", "--races", 90).stdout
    assert re.search(r"^90 races, 0 problems$", output, re.MULTILINE), output


@pytest.mark.slow
def test_commands_at_some_crash_points_are_not_lost() -> None:
    words = ("--engines", "serial", "--commands", "cancel,suspend", "--only", "give-back")
    output = tools.run("crash", "commands", *words, "--quick").stdout
    assert re.search(_NOTHING_LOST, output, re.MULTILINE), output


@pytest.mark.slow(long=True)
@pytest.mark.timeout(3600)
def test_commands_at_any_crash_point_are_not_lost() -> None:
    output = tools.run("crash", "commands", "--quick").stdout
    figures = re.search(_NOTHING_LOST, output, re.MULTILINE)
    assert figures and int(figures[1]) > 500, output


_NOTHING_LOST = r"^(\d+) cases, [1-9].* accepted and lost: 0$"


@pytest.mark.slow
def test_flow_fails_on_full_disk_and_resumes_when_space_is_free() -> None:
    output = tools.run("crash", "full").stdout
    assert output.count(" 0 problems\n") == 2, output
