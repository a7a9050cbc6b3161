"""Owners of leases: their text, and the death of their process."""

from __future__ import annotations

import os
import subprocess
import warnings
from typing import Any

import pytest

from tests.support import fresh
from wbengine._concurrency import manual_clock
from wbengine.persistence import _owners

linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="needs /proc")


#: Program that prints its owner, and runs until its input is closed.
OWNER = "from wbengine.persistence import _owners; print(_owners.new(), flush=True); input()"


def test_owner_text_is_parsable_and_described_in_words() -> None:
    owner = _owners.new(manual_clock.ManualClock(86400.0))
    assert _owners.Owner.parse(str(owner)) == owner
    assert len(str(owner)) < 200
    words = _owners.describe(str(owner))
    assert f"process {os.getpid()} (this process) on host {owner.host}" in words
    assert "since 1970-01-02 00:00:00 UTC" in words
    assert _owners.describe("somebody/else") == "somebody/else"
    owner.end_run()


def test_momentary_owner_is_marked_in_its_text() -> None:
    """Otherwise it is a usual owner. A text with an unknown last part cannot be parsed."""
    run, change = _owners.new(), _owners.new(momentary=True)
    assert not _owners.is_momentary(str(run)) and _owners.is_momentary(str(change))
    assert _owners.Owner.parse(str(change)) == change and change.momentary
    assert f"process {os.getpid()} (this process)" in _owners.describe(str(change))
    assert _owners.Owner.parse(f"{run}/longer") is None
    assert not _owners.is_momentary("somebody/else")
    assert not _owners.is_dead(str(change))
    change.end_run()
    assert _owners.is_dead(str(change))
    run.end_run()


def test_owner_in_this_process_is_dead_after_end_run() -> None:
    """Another run of the same process is a separate owner."""
    one, two = _owners.new(), _owners.new()
    assert not _owners.is_dead(str(one)) and not _owners.is_dead(str(two))
    one.end_run()
    assert _owners.is_dead(str(one)) and not _owners.is_dead(str(two))
    two.end_run()


@linux
def test_owner_is_dead_if_its_process_on_this_host_was_killed() -> None:
    """A zombie counts as dead."""
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with fresh.process("-c", OWNER, text=True, **pipes) as process:
        assert process.stdout is not None
        text = process.stdout.readline().strip()
        assert not _owners.is_dead(text)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        assert _owners.is_dead(text), "a zombie"
    assert _owners.is_dead(text)


@linux
@pytest.mark.parametrize(
    "part, value, died",
    [
        # The pid is that of this process: an owner with an earlier birth is dead.
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
def test_owner_on_other_host_boot_or_pid_space_is_not_known_dead(
    part: str, value: Any, died: bool
) -> None:
    """The owner belongs to another host, boot or pid namespace."""
    mine = _owners.new()
    fields = {name: getattr(mine, name) for name in mine.__slots__}
    theirs = _owners.Owner(**{**fields, "process": "another", part: value})
    assert _owners.is_dead(str(theirs)) is died
    mine.end_run()
    other = _owners.Owner(**{**fields, "process": "another"})
    assert not _owners.is_dead(str(other)), "it lives"
    assert not _owners.is_dead("what/ever")


@linux
def test_forked_child_is_another_owner_and_parent_is_alive() -> None:
    mine = _owners.new()
    read, write = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads of other tests may still run
        pid = os.fork()
    if not pid:
        theirs = _owners.new()
        alive = not _owners.is_dead(str(mine))
        distinct = theirs.process != mine.process and theirs.pid == os.getpid()
        os.write(write, b"right" if alive and distinct else b"wrong")
        os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 5) == b"right"
    os.close(read)
    os.close(write)
    mine.end_run()
