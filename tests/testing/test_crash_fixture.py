"""The fixture `crash_everywhere`, its options and its marker."""

from __future__ import annotations

import shlex
from typing import Any

import pytest

pytest_plugins = ["pytester"]

#: A flow whose step pays twice if its worker is killed after the effect.
SUITE = """
import pytest
from wbengine import task
from wbengine.patterns import linear_flow
from wbengine.testing import World

bank = World("bank")

@task.task(idempotent=True)
def charge(order):
    bank.effect(f"charge {order}")

@charge.revert(failed=True)
def refund(order):
    bank.undo(f"charge {order}", missing_ok=True)

def order():
    return linear_flow.Flow("order").add(charge())

@pytest.mark.parametrize("number", ["17", "it's [18] / 19"])
@pytest.mark.xdist_group("shop")
class TestOrder:
    def test_order(self, crash_everywhere, number):
        report = crash_everywhere(order, {"order": number}, world=bank)
        assert report.ok, report
"""

#: Shows the budgets that the fixture passes.
BUDGETS = """
import pytest
from wbengine.testing._crashing import fixture

@pytest.fixture(autouse=True)
def budgets(monkeypatch):
    seen = []
    class Report: pass
    def crash_everywhere(budget=None, **options):
        seen.append(budget)
        return Report()
    monkeypatch.setattr(fixture, "crash_everywhere", crash_everywhere)
    return seen

def test_default(crash_everywhere, budgets):
    crash_everywhere()
    assert budgets == [{default}]

@pytest.mark.crash_budget(30)
def test_marker(crash_everywhere, budgets):
    crash_everywhere()
    assert budgets == [30.0]

@pytest.mark.crash_budget(30)
def test_argument(crash_everywhere, budgets):
    crash_everywhere(budget=5)
    assert budgets == [5]
"""


def commands(result: pytest.RunResult) -> list[str]:
    """Return the commands that the reports contain."""
    start = "repeat it: "
    lines = [line.partition(start)[2] for line in result.outlines if start in line]
    assert lines, result.stdout.str()
    return list(dict.fromkeys(lines))


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [(), ("-n", "2", "--dist", "loadgroup")],
    ids=lambda options: " ".join(options) or "one process",
)
def test_printed_command_repeats_only_the_failed_run(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    pytester.makepyfile(test_shop=SUITE)
    result = pytester.runpytest_subprocess("-q", *options, "--crash-budget", "3")
    result.assert_outcomes(failed=2)
    found = commands(result)
    assert any("'\"'\"'s [18] / 19]'" in command for command in found)
    program, *arguments = shlex.split(found[-1])
    assert program == "pytest"
    again = pytester.runpytest_subprocess("-q", *arguments)
    again.assert_outcomes(failed=1)
    assert "(1 of 1 single faults, 0 of 0 pairs" in again.stdout.str()
    assert found[-1] in commands(again)


@pytest.mark.slow
def test_command_works_in_the_folder_in_which_pytest_was_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeini("[pytest]")
    folder = pytester.mkdir("shop")
    (folder / "test_shop.py").write_text(SUITE)
    monkeypatch.chdir(folder)
    result = pytester.runpytest_subprocess("-q", "-k", "17", "--crash-budget", "3")
    assert commands(result)[0].startswith(
        "pytest 'test_shop.py::TestOrder::test_order[17]' --crash-only "
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "default"), [((), None), (("--crash-budget", "7.5"), 7.5)], ids=["none", "option"]
)
def test_budget_is_that_of_argument_marker_or_option(
    pytester: pytest.Pytester, options: tuple[str, ...], default: Any
) -> None:
    pytester.makepyfile(BUDGETS.replace("{default}", repr(default)))
    result = pytester.runpytest_subprocess("-q", "-W", "error", "--strict-markers", *options)
    result.assert_outcomes(passed=3)


@pytest.mark.slow
@pytest.mark.parametrize("value", ["0", "nan"])
def test_invalid_budget_is_refused(pytester: pytest.Pytester, value: str) -> None:
    pytester.makepyfile("def test_it(crash_everywhere): pass")
    result = pytester.runpytest_subprocess("-q", "--crash-budget", value)
    result.assert_outcomes(errors=1)
    words = f"--crash-budget must have a positive number * got {float(value)}"
    result.stdout.fnmatch_lines([f"*{words}*"])


@pytest.mark.slow
def test_invalid_budget_of_marker_is_refused(pytester: pytest.Pytester) -> None:
    values = {"": "None", "True": "True", "'30'": "'30'"}
    tests = [
        f"@pytest.mark.crash_budget({value})\ndef test_{number}(crash_everywhere): pass"
        for number, value in enumerate(values)
    ]
    pytester.makepyfile("\n".join(["import pytest", *tests]))
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=len(values))
    words = "The marker crash_budget must have a positive number * got"
    result.stdout.fnmatch_lines([f"*{words} {value}*" for value in values.values()])


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["one process", "xdist"])
def test_failed_test_shows_findings_once_although_pytest_shortens_them(
    pytester: pytest.Pytester, options: tuple[str, ...]
) -> None:
    """Without the fixture, the text shows an argument instead of a command."""
    suite = SUITE.replace("self, crash_everywhere, number", "self, number")
    pytester.makepyfile("from wbengine.testing import crash_everywhere\n" + suite)
    result = pytester.runpytest_subprocess("-q", "-k", "17", *options)
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    assert text.count("1. at_most_once: bank: 'charge 17' was done twice") == 1
    assert "repeat it: crash_everywhere(..., only='" in text
    assert "AssertionError: <Report: 1 finding in " in text


@pytest.mark.slow
def test_each_report_is_saved_as_page(pytester: pytest.Pytester) -> None:
    """Names of tests may be long, and differ only in characters that file names cannot have."""
    suite = SUITE.replace('"it\'s [18] / 19"]', '"18/", "18:"]')
    call = "crash_everywhere(order, {'order': 1}, world=bank)"
    suite += f"\ndef test_{'a' * 300}(crash_everywhere):\n    {call}"
    suite = suite.replace(
        "    assert report.ok", "    crash_everywhere(order, {'order': 1}, world=bank)\n    #"
    )
    pytester.makepyfile(test_shop=suite)
    options = ("--crash-html", "pages/of tests", "--crash-only", "1:kill")
    pytester.runpytest_subprocess("-q", "-n", "2", *options).assert_outcomes(passed=4)
    names = sorted(path.name for path in (pytester.path / "pages/of tests").iterdir())
    assert len(names) == 7 and max(map(len, names)) < 150
    first = next(name for name in names if name.startswith("test_shop.py-TestOrder-test_order-17-"))
    text = (pytester.path / "pages/of tests" / first).read_text("utf-8")
    assert "<title>test_shop.py::TestOrder::test_order[17]</title>" in text


@pytest.mark.slow
def test_schedule_that_is_no_schedule_is_refused(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(SUITE)
    result = pytester.runpytest_subprocess("-q", "-k", "17", "--crash-only", "twelve")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*'twelve' in 'twelve' must be the number of a moment*"])
