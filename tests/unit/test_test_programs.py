"""Programs from the fork server of the tests behave like programs of a new interpreter."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.support import changes, nightly, python, tally
from tests.support.waiting import until

BOTH = pytest.mark.parametrize("real", [False, True], ids=["forked", "real"])


@BOTH
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("print(__name__); import sys; print(sys.argv, file=sys.stderr)", 0),
        ("import sys; sys.exit(3)", 3),
        ("import sys; sys.exit('wrong usage')", 1),
        ("{}['x']", 1),
        ("import os, signal; os.kill(os.getpid(), signal.SIGTERM)", -signal.SIGTERM),
        ("raise KeyboardInterrupt", -signal.SIGINT),
        ("import atexit; atexit.register(print, 'end')", 0),
        ("import threading; threading.Timer(0.01, print, ['end']).start()", 0),
        ("import warnings; warnings.warn('no')", 1),
    ],
)
def test_program_has_exit_code_and_output(code: str, result: int, real: bool) -> None:
    done = python.run(
        ["-W", "error", "-c", code, "a", "b"], real=real, capture_output=True, text=True
    )
    assert done.returncode == result
    expected = subprocess.run(
        [*_PYTHON, "-W", "error", "-c", code, "a", "b"], capture_output=True, text=True
    )
    assert (done.stdout, done.stderr.splitlines()[-1:]) == (
        expected.stdout, expected.stderr.splitlines()[-1:],
    )  # fmt: skip


_PYTHON = [sys.executable]


@BOTH
def test_module_and_file_run_in_their_folder(tmp_path: Path, real: bool) -> None:
    (tmp_path / "mine.py").write_text("import other; print(other.__name__, __name__, __file__)")
    (tmp_path / "other.py").touch()
    printed = f"other __main__ {tmp_path / 'mine.py'}\n"
    for words in (["-m", "mine"], [str(tmp_path / "mine.py")]):
        done = python.run(words, real=real, cwd=tmp_path, capture_output=True, text=True)
        assert (done.stdout, done.stderr) == (printed, "")


@BOTH
def test_program_reads_variables_and_input_of_its_caller(tmp_path: Path, real: bool) -> None:
    code = "import os, sys; print(os.getcwd(), os.environ.get('A'), sys.stdin.read())"
    done = python.run(
        ["-c", code], real=real, cwd=tmp_path, env={**os.environ, "A": "1"}, input="in",
        capture_output=True, text=True,
    )  # fmt: skip
    assert done.stdout == f"{tmp_path} 1 in\n", done.stderr


@BOTH
def test_killed_and_stopped_programs_are_reported(real: bool) -> None:
    with python.running(["-c", "input()"], real=real, stdin=python.PIPE) as process:
        assert process.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(0.01)
        process.send_signal(signal.SIGSTOP)
        process.kill()
        assert process.wait(60) == process.returncode == -signal.SIGKILL


def test_program_dies_with_the_process_that_started_it() -> None:
    code = (
        "import os, time\n"
        "from tests.support import python\n"
        "child = python.start(['-c', 'import time; time.sleep(600)'], die_with_parent=True)\n"
        "print(child.pid, flush=True)\n"
        "time.sleep(600)\n"
    )
    with python.running(["-c", code], cwd=python.REPOSITORY, stdout=python.PIPE) as parent:
        assert parent.stdout is not None
        child = os.pidfd_open(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        until(lambda: _has_ended(child))
        os.close(child)


def _has_ended(pidfd: int) -> bool:
    try:
        signal.pidfd_send_signal(pidfd, 0)
    except ProcessLookupError:
        return True
    return False


def test_each_slow_test_belongs_to_the_share_of_some_commit() -> None:
    names = [f"tests/test_{number}" for number in range(400)]
    commits = [f"commit {number}" for number in range(400)]
    shares = [nightly.selected(names, commit) for commit in commits]
    assert {name for share in shares for name in share} == set(names)
    assert all(len(share) < 60 for share in shares)


class Case:
    """A collected test with the marker `slow`."""

    def __init__(self, number: int) -> None:
        self.name = self.nodeid = f"tests/test_{number}"

    def get_closest_marker(self, name: str) -> object:
        return self if name == "slow" else None

    def iter_markers(self, name: str) -> list[object]:
        return []


def test_commits_of_one_share_begin_with_different_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a run is too short for all tests of a share."""
    monkeypatch.setattr(tally, "waiting", set())
    monkeypatch.setenv("PYTEST_XDIST_WORKER_COUNT", "2")
    config: Any = SimpleNamespace(hook=SimpleNamespace(pytest_deselected=lambda **items: None))
    share = nightly.share("commit 0")
    commits = [f"commit {number}" for number in range(2000)]
    names, firsts = set[str](), set[str]()
    for commit in (each for each in commits if nightly.share(each) == share):
        items: list[Any] = [Case(number) for number in range(200)]
        nightly.Share(commit).pytest_collection_modifyitems(config, items)
        names.update(item.nodeid for item in items)
        firsts.add(items[0].nodeid)
    assert firsts == names == set(nightly.selected([*names], "commit 0"))


def test_samples_contain_all_cases_and_one_of_each_large_test() -> None:
    sizes = {"tests/test_one": 1, "tests/test_two": 2, "tests/test_many": 90}
    names = [f"{test}[{case}]" for test, count in sizes.items() for case in range(count)]
    samples = [nightly.sampled(names, f"commit {number}") for number in range(120)]
    assert set().union(*samples) == set(names)
    for sample in samples:
        assert any(name.startswith("tests/test_many[") for name in sample)
        assert len(sample) < 30


def test_each_test_belongs_to_one_part_and_longest_tests_are_distributed() -> None:
    names = [f"tests/test_{number}" for number in range(400)]
    longest = names[::40]
    parts = [nightly.part(names, longest, number, 3) for number in (1, 2, 3)]
    assert sorted(name for part in parts for name in part) == sorted(names)
    assert sorted(len(part & set(longest)) for part in parts) == [3, 3, 4]
    assert all(100 < len(part) < 170 for part in parts)
    assert nightly.part(names, longest, 1, 1) == set(names)
    assert nightly.parse_part("2/3") == (2, 3)
    for text in ("4/3", "0/3", "2", "-1/3", "a/b"):
        with pytest.raises(argparse.ArgumentTypeError, match=re.escape(repr(text))):
            nightly.parse_part(text)


def test_each_process_begins_with_some_of_the_longest_tests() -> None:
    order = nightly.longest_first(range(12), [3, 5, 11], 2)
    assert order == [3, 11, 0, 1, 2, 4, 6, 5, 7, 8, 9, 10]
    assert nightly.longest_first(range(3), [], 1) == [0, 1, 2]


def test_files_of_latest_commits_and_of_the_working_tree_are_recent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def git(*words: str) -> None:
        settings = ("-c", "user.name=a", "-c", "user.email=a@example.org")
        subprocess.run(["git", *settings, *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(changes, "REPOSITORY", tmp_path)
    changed = changes.changed.__wrapped__
    assert changed() is None
    git("init")
    names = [f"f{number}" for number in range(changes.RECENT_COMMITS + 2)]
    for name in names:
        (tmp_path / name).touch()
        git("add", name)
        git("commit", "-m", name)
    (tmp_path / "f0").write_text("changed")
    (tmp_path / "new").touch()
    assert changed() == {tmp_path / name for name in ("f0", *names[2:], "new")}


def test_test_functions_of_latest_commits_are_added_tests(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = ("-c", "user.name=a", "-c", "user.email=a@example.org")

    def commit(text: str) -> None:
        (tmp_path / "tests" / "test_a.py").write_text(text)
        for words in (["add", "tests"], [*settings, "commit", "--allow-empty", "-m", "a"]):
            subprocess.run(["git", *words], cwd=tmp_path, check=True, capture_output=True)

    monkeypatch.setattr(changes, "REPOSITORY", tmp_path)
    added = changes.added_tests.__wrapped__
    assert added() == frozenset(), "outside a repository"
    subprocess.run(["git", "init"], cwd=tmp_path, check=True, capture_output=True)
    (tmp_path / "tests").mkdir()
    commit("def test_old(): ...\n")
    commit("def test_old(): ...\ndef test_new(): ...\nasync def test_async(): ...\n")
    for _ in range(changes.RECENT_COMMITS - 1):
        commit("class TestA:\n    def test_method(): ...\n")
    assert added() == {"test_new", "test_async", "test_method"}
