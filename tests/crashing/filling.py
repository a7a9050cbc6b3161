"""Full disks: writes raise errors, data stay intact, and the flow continues with free space."""

from __future__ import annotations

import contextlib
import resource
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.crashing import children, engines, judging, stores
from wbengine import exceptions
from wbengine.persistence import backends

KINDS = ("dir", "sqlite")
FLOW = "heavy"

#: Size of the small disk in bytes, and the free space when the flow begins. The flow needs 3 MB.
SIZE = 16 << 20
ROOM = 600 << 10


def run(folder: Path, kinds: Sequence[str] = KINDS) -> int:
    """Run on all kinds of stores, print the results, and return the number of problems."""
    engines.preload(kinds)
    expected = engines.expected(folder / "expected", [FLOW])
    problems = []
    for kind in kinds:
        began = time.monotonic()
        found = _fill_up(folder / kind, kind, expected[FLOW])
        problems += [f"{kind}: {problem}" for problem in found]
        print(f"{kind}: {time.monotonic() - began:.1f} s, {len(found)} problems")
    for problem in problems:
        print(f"PROBLEM {problem}")
    return len(problems)


@contextlib.contextmanager
def small_disk(folder: Path) -> Iterator[tuple[str, Callable[[], None], Callable[[], None]]]:
    """Mount a small disk at `folder`. Yield its description, a function that fills it (in the
    process
    that writes), and a function that empties it.

    Without permission to mount, a limit of the file size replaces the disk.
    """
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        yield "files that cannot grow", _limit_files, lambda: None
        return
    filler = folder / "filler"

    def fill() -> None:
        with filler.open("wb") as file:
            left = SIZE - ROOM
            while left > 0:
                left -= file.write(bytes(min(left, 1 << 16)))

    try:
        yield f"a tmpfs of {SIZE >> 20} MB", fill, filler.unlink
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=False)


def _limit_files() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (ROOM, ROOM))


def _fill_up(folder: Path, kind: str, expected: judging.FlowHistory) -> list[str]:
    with small_disk(folder / "disk") as (what, fill, empty):
        work = engines.Work(
            folder,
            stores.Stores(folder / "disk", {}).conf(kind, "records"),
            engines.options("serial", folder),
            (FLOW,),
            destroy=False,
        )
        reports = folder / "told"

        def full() -> None:
            with backends.backend(work.conf) as backend:
                with contextlib.closing(backend.get_connection()) as connection:
                    engines.save(work, connection)
                fill()
                try:
                    engines.run(work, FLOW, backend, pause=0.01)
                except exceptions.StorageFailure as error:
                    reports.write_text(str(error), encoding="utf-8")

        log = folder / "full.log"
        code = children.wait(children.fork(full, log))
        if code:
            return [f"with {what}: {log.read_text(encoding='utf-8')}"]
        if not reports.exists():
            return [f"with {what}: nothing went wrong although the disk was full"]
        print(f"{kind}, {what}: {reports.read_text(encoding='utf-8')}")
        done = len(work.effects(FLOW))
        if not 0 < done < len(expected.effects):
            return [f"it was full too soon or too late: after {done} effects"]
        # A full disk is still readable.
        code = children.wait(children.fork(lambda: _read(work), log))
        if code:
            return [f"when it is full, it cannot be read: {log.read_text(encoding='utf-8')}"]
        empty()
        code = children.wait(engines.live(work, 1))
        if code:
            return [f"with room again: {work.path('engine-1.log').read_text(encoding='utf-8')}"]
        end = engines.end(work) or {}
        cut = engines.cuts(work, 1, {FLOW: done})[FLOW]
        history = judging.FlowHistory(FLOW, work.effects(FLOW), end.get(FLOW), [cut])
        return judging.problems(history, expected, judging.Rules())


def _read(work: engines.Work) -> None:
    with backends.backend(work.conf) as backend, backend.get_connection() as connection:
        assert connection.get_flow_details(work.uuid(FLOW)).state is not None
