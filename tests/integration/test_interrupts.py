"""Ctrl-C at any moment of a run leaks no locks, threads or leases in the process."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.support import python
from tests.support.workers import REPOSITORY

KINDS = ["serial", "parallel"]

#: Functions of each kind of engine that acquire and release shared resources, and classes of the
#: standard library that these must not use.
CRITICAL = {
    "serial": [
        "Engine._alone",
        "Engine._drive",
        "Engine._session",
        "Ownership._release",
        "Ownership.owned",
        "RecordWriter.batch",
        "RecordWriter.release_lease",
        "_StoreLeases.",
        "threading.py:Condition",
        "writers.py:Writer._check",
        "writers.py:Writer._close",
        "writers.py:Writer.transact",
    ],
    "parallel": [
        "Engine._executing",
        "Engine._stop",
        "Pool._add_slot",
        "Pool._start_thread",
        "Pool._wake",
        "Pool.stop",
        "Thread.start",
        "ThreadTaskExecutor.start",
        "ThreadTaskExecutor.stop",
        "conditions.py:Event.wait",
        "threading.py:Condition",
        "threading.py:Event",
    ],
}


def interrupted_runs(kind: str, folder: Path, *options: str, least: int) -> None:
    """Interrupt runs in a separate process, and fail if anything leaked."""
    program = ["-m", "tests.support.interrupted_runs", kind, str(folder)]
    done = python.run(
        [*program, *options],
        real=True,
        timeout=None,
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
    )
    lines = done.stdout.splitlines()
    assert done.returncode == 0, "\n".join([*lines[-5:], done.stderr])
    result = json.loads(lines[-1])
    assert result["problems"] == {}, done.stderr
    assert result["interrupted"] >= least, result
    assert result["threads"] < 10
    print(f"{kind} {' '.join(options)}: {result}")


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_interrupt_in_critical_section_leaks_no_resources(kind: str, tmp_path: Path) -> None:
    interrupted_runs(kind, tmp_path, "--points", *CRITICAL[kind], least=40)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [10, 300])
def test_interrupts_at_random_moments_leak_no_resources(
    kind: str, count: int, tmp_path: Path
) -> None:
    interrupted_runs(kind, tmp_path, "--signals", str(count), least=count)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("part", range(8))
@pytest.mark.parametrize("seed", [None, 1])
def test_interrupt_at_any_instruction_leaks_no_resources(
    kind: str, part: int, seed: int | None, tmp_path: Path
) -> None:
    """Interrupt the first execution of each instruction, or a random one if there is a seed."""
    options = [] if seed is None else ["--seed", str(seed)]
    interrupted_runs(kind, tmp_path, "--points", "--part", f"{part}/8", *options, least=150)
