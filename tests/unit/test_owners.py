"""Who owns a flow, in words, and when it is certain that nobody does any more."""

from __future__ import annotations

import os
import subprocess
import warnings
from typing import Any

import pytest

from tests.support import fresh
from wbengine import _clock
from wbengine.persistence import owners

linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


#: A process that tells who it is, and lives until its input is closed.
OWNER = "from wbengine.persistence import owners; print(owners.new(), flush=True); input()"


def test_an_owner_is_a_text_that_can_be_read() -> None:
    """By machines and by people."""
    owner = owners.new(_clock.ManualClock(86400.0))
    assert owners.Owner.parse(str(owner)) == owner
    assert len(str(owner)) < 200
    words = owners.in_words(str(owner))
    assert f"process {os.getpid()}, which is this one, on host {owner.host}" in words
    assert "since 1970-01-02 00:00:00 UTC" in words
    assert owners.in_words("somebody/else") == "somebody/else"
    owner.let_go()


def test_owner_of_one_change_says_so_in_its_text() -> None:
    """It is an owner like others else; a text with another last part is of another make."""
    run, change = owners.new(), owners.new(momentary=True)
    assert not owners.is_momentary(str(run)) and owners.is_momentary(str(change))
    assert owners.Owner.parse(str(change)) == change and change.momentary
    assert f"process {os.getpid()}, which is this one," in owners.in_words(str(change))
    assert owners.Owner.parse(f"{run}/longer") is None
    assert not owners.is_momentary("somebody/else")
    assert not owners.died(str(change))
    change.let_go()
    assert owners.died(str(change))
    run.let_go()


def test_a_run_of_this_process_is_over_when_it_says_so() -> None:
    """And another run of the same process is another owner."""
    one, two = owners.new(), owners.new()
    assert not owners.died(str(one)) and not owners.died(str(two))
    one.let_go()
    assert owners.died(str(one)) and not owners.died(str(two))
    two.let_go()


@linux
def test_the_death_of_a_process_of_this_host_is_proved() -> None:
    """Also that of one that nobody has buried yet."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with fresh.process("-c", OWNER, text=True, **pipes) as process:
        assert process.stdout is not None
        text = process.stdout.readline().strip()
        assert not owners.died(text)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert owners.died(text), "a zombie"
    assert owners.died(text)


@linux
@pytest.mark.parametrize(
    "part, value, died",
    [
        # That process is ours; whoever had its number before us is dead.
        ("born", "1", True),
        ("host", "elsewhere", False),
        ("boot", "0" * 32, False),
        ("boot", "-", False),
        ("space", "1.2", False),
        ("space", "-", False),
        ("born", "-", False),
        ("pid", "0", False),
        ("pid", "-1", False),
    ],
)
def test_nothing_is_proved_of_what_cannot_be_seen(part: str, value: Any, died: bool) -> None:
    """Another host, an earlier boot, other processes; the process part is somebody else's."""
    mine = owners.new()
    fields = {name: getattr(mine, name) for name in mine.__slots__}
    theirs = owners.Owner(**{**fields, "process": "another", part: value})
    assert owners.died(str(theirs)) is died
    mine.let_go()
    other = owners.Owner(**{**fields, "process": "another"})
    assert not owners.died(str(other)), "it lives"
    assert not owners.died("what/ever")


@linux
def test_a_fork_owns_nothing_of_its_parent() -> None:
    """Its owner is another one, and the parent's is alive."""
    mine = owners.new()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # other tests may have left threads
        pid = os.fork()
    if not pid:
        theirs = owners.new()
        alive = not owners.died(str(mine))
        distinct = theirs.process != mine.process and theirs.pid == os.getpid()
        os.write(write, b"right" if alive and distinct else b"wrong")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 5) == b"right"
    os.close(read)
    os.close(write)
    mine.let_go()
