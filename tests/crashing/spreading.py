"""Many jobs in a few processes without threads, so that each process can fork."""

from __future__ import annotations

import json
import os
import select
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

from tests.crashing import children

_Job = TypeVar("_Job")
_Case = TypeVar("_Case")

#: Opens the resources that the jobs of one process share, and yields the function that runs a
#: job.
Enter = Callable[[int], AbstractContextManager[Callable[[_Job], dict[str, Any]]]]

_NUMBER = 4


def spread(jobs: Sequence[_Job], processes: int, enter: Enter[_Job]) -> Iterator[dict[str, Any]]:
    """Yield the result of each job when it is done; a job that raises yields {'error': ...}.

    All processes have ended afterwards.
    """
    todo, give = os.pipe()
    for number in range(len(jobs)):
        os.write(give, number.to_bytes(_NUMBER, "big"))  # the pipe has room for 16,000
    os.close(give)
    readers: dict[int, int] = {}
    incomplete: dict[int, bytes] = {}
    try:
        parent = os.getpid()
        for number in range(min(processes, len(jobs))):
            ready, tell = os.pipe()
            pid = os.fork()
            if not pid:
                try:
                    os.close(ready)
                    children.die_with_parent(parent)
                    _serve(number, jobs, todo, tell, enter)
                finally:
                    os._exit(0)
            os.close(tell)
            readers[ready], incomplete[ready] = pid, b""
        while readers:
            for ready in select.select(list(readers), [], [])[0]:
                data = os.read(ready, 1 << 16)
                if not data:
                    os.close(ready)
                    children.wait(readers.pop(ready))
                    continue
                *lines, incomplete[ready] = (incomplete[ready] + data).split(b"\n")
                yield from map(json.loads, lines)
    finally:
        os.close(todo)
        for ready, pid in readers.items():
            children.kill(pid)
            os.close(ready)


def report(
    cases: Sequence[_Case], processes: int, enter: Enter[tuple[int, _Case]], problems: list[str]
) -> Iterator[dict[str, Any]]:
    """Run numbered cases, and yield the report of each case that does not raise.

    Print the problems of all cases, and add them to `problems`.
    """
    for each in spread(list(enumerate(cases)), processes, enter):
        for problem in each.get("problems", [each.get("error")]):
            problems.append(problem)
            print(f"PROBLEM {problem}", flush=True)
        if "error" not in each:
            yield each


def _serve(number: int, jobs: Sequence[_Job], todo: int, tell: int, enter: Enter[_Job]) -> None:
    with enter(number) as do:
        while numbered := os.read(todo, _NUMBER):
            job = jobs[int.from_bytes(numbered, "big")]
            try:
                result = do(job)
            except Exception:
                result = {"error": f"{job}: {traceback.format_exc()}"}
            line = json.dumps(result).encode() + b"\n"
            while line:
                line = line[os.write(tell, line) :]
