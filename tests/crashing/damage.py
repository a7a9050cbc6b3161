"""Damage: bytes of what is stored are flipped or cut off; nobody is to load that as if it were so.

Every record either comes out as it was put in, or is refused with an error of wbengine's own.  The
other flows go on; what is put back in order comes out again.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.crashing import children, engines, flows, pictures, spreading
from tests.seams import stores
from wbengine import exceptions, states
from wbengine.persistence import backends, models

#: Flows of the store that is damaged; each has a book of its own.
FLOWS = 6
#: What a damaged record may be refused with.
REFUSED = (exceptions.CorruptRecord, exceptions.StorageFailure)


def run(folder: Path, kinds: Sequence[str], count: int, seed: int, jobs: int = 2) -> int:
    """How many problems there are, over all kinds; prints figures."""
    began = time.monotonic()
    engines.preload(kinds)
    problems: list[str] = []
    tallies: dict[str, Counter[str]] = {kind: Counter() for kind in kinds}
    originals = {kind: _fill(folder / kind, kind) for kind in kinds}
    todo = [(kind, seed + number) for number in range(count) for kind in kinds]

    @contextlib.contextmanager
    def enter(number: int) -> Iterator[Any]:
        yield lambda job: _try(originals[job[0]], job[1], folder / f"{job[0]}-{job[1]}")

    for told in spreading.spread(todo, jobs, enter):
        if "error" in told:
            told = {"kind": kinds[0], "problems": [told["error"]], "counts": {}}
        tallies[told["kind"]].update(told["counts"])
        for problem in told["problems"]:
            problems.append(problem)
            print(f"PROBLEM {problem}", flush=True)
    for kind, tally in tallies.items():
        figures = ", ".join(f"{tally[name]} {name}" for name in sorted(tally))
        print(f"{kind}: {count} records damaged; loads of flows: {figures}")
    print(f"{time.monotonic() - began:.0f} s, {len(problems)} problems")
    return len(problems)


# -- the store that is damaged -------------------------------------------------------------------


@dataclass(frozen=True)
class Original:
    kind: str
    folder: Path
    #: What is in it, by flow.
    pictures: dict[str, pictures.Picture]

    def conf(self, folder: Path) -> dict[str, Any]:
        return stores.conf(self.kind, folder, "s")


def _uuid(number: int) -> str:
    return f"damage-{number}"


def _fill(folder: Path, kind: str) -> Original:
    """Flows in every state: new, ended, suspended, and one whose engine was killed."""
    folder.mkdir(parents=True)
    conf = stores.conf(kind, folder, "s")

    def work() -> None:
        with backends.backend(conf) as backend, backend.get_connection() as connection:
            for number in range(FLOWS):
                book = models.LogBook(f"book {number}", uuid=f"book-{number}")
                book.meta["told"] = f"book {number}"
                book.add(models.FlowDetail(f"mixed-{number}", uuid=_uuid(number)))
                connection.save_logbook(book)
            for number in range(1, FLOWS):
                engine = _engine(folder, backend, number)
                for turn, _ in enumerate(_run_iter(engine), 1):
                    if number % 2 == 0 and turn == 12:
                        engine.suspend()
                    if number == FLOWS - 1 and turn == 20:
                        os.kill(os.getpid(), signal.SIGKILL)

    log = folder.with_suffix(".log")
    code = children.wait(children.fork(work, log))
    assert code == -signal.SIGKILL, log.read_text(encoding="utf-8")
    told = folder.with_suffix(".json")

    def look() -> None:
        with backends.backend(conf) as backend, backend.get_connection() as connection:
            found = {
                str(number): pictures.take(connection, _uuid(number)) for number in range(FLOWS)
            }
            told.write_text(json.dumps(found), encoding="utf-8")

    code = children.wait(children.fork(look, log))
    assert not code, log.read_text(encoding="utf-8")
    return Original(kind, folder, json.loads(told.read_text(encoding="utf-8")))


def _engine(folder: Path, backend: Any, number: int) -> Any:
    from wbengine import engines as loading

    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(_uuid(number))
    name = f"mixed-{number}"
    store = flows.store(str(folder / f"audit-{name}"))
    return loading.load(
        flows.make(name), store=store, flow_detail=detail, backend=backend, engine="serial"
    )


def _run_iter(engine: Any) -> Iterator[str]:
    with contextlib.suppress(ValueError, exceptions.WrappedFailure):
        yield from engine.run_iter()


# -- one damage ----------------------------------------------------------------------------------


def _try(original: Original, seed: int, folder: Path) -> dict[str, Any]:
    """Damage a copy, and look at it as a user would; in a child, as backends may have threads."""
    shutil.copytree(original.folder, folder)
    told = folder.with_suffix(".told")

    def work() -> None:
        trial = Trial(original, folder, random.Random(seed))
        trial.run()
        told.write_text(
            json.dumps({"kind": original.kind, "problems": trial.problems, "counts": trial.counts}),
            encoding="utf-8",
        )

    log = folder.with_suffix(".log")
    code = children.wait(children.fork(work, log))
    if code:
        text = log.read_text(encoding="utf-8")[-3000:]
        return {"kind": original.kind, "problems": [f"{folder.name}: {text}"], "counts": {}}
    found: dict[str, Any] = json.loads(told.read_text(encoding="utf-8"))
    if not found["problems"]:
        shutil.rmtree(folder)
    return found


class Trial:
    """What becomes of one damaged store."""

    def __init__(self, original: Original, folder: Path, chance: random.Random) -> None:
        self.original = original
        self.folder = folder
        self.conf = original.conf(folder)
        self.chance = chance
        self.problems: list[str] = []
        self.counts: Counter[str] = Counter()
        self.harm: stores.Harm | None = None

    def run(self) -> None:
        self.harm = stores.damage(self.conf, self.chance)
        refused = self._look()
        self._list_books()
        self._go_on(refused)
        for number in sorted(refused - self._look(counted=False)):
            self._problem(f"flow {number} was refused, and loads now")
        if refused and not self.harm.kept():
            self._problem("what was damaged is gone")
        self.harm.undo()
        for number in sorted(self._look(counted=False)):
            self._problem(f"flow {number} is refused although all is in order again")

    def _problem(self, text: str) -> None:
        assert self.harm is not None
        self.problems.append(f"{self.original.kind}: {self.harm.text}: {text} (in {self.folder})")

    def _look(self, counted: bool = True) -> set[str]:
        """Load every flow; those that are refused."""
        refused = set()
        for number, wanted in self.original.pictures.items():
            try:
                found = self._load(int(number))
            except REFUSED as error:
                refused.add(number)
                if counted and len(str(error)) < 20:
                    self._problem(f"{error!r} says nothing")
            except BaseException:
                self._problem(f"flow {number}: {traceback.format_exc()}")
            else:
                if found != wanted and number not in self._ran:
                    self._problem(f"flow {number} is loaded as {_difference(found, wanted)}")
            if counted:
                self.counts["refused" if number in refused else "equal"] += 1
        self._close()
        return refused

    def _load(self, number: int) -> pictures.Picture:
        if self._backend is None:
            self._backend = backends.fetch(self.conf)
        with contextlib.closing(self._backend.get_connection()) as connection:
            return pictures.take(connection, _uuid(number))

    def _close(self) -> None:
        if self._backend is not None:
            self._backend.close()
            self._backend = None

    _backend: Any = None
    _ran: frozenset[str] = frozenset()

    def _list_books(self) -> None:
        try:
            with backends.backend(self.conf) as backend, backend.get_connection() as connection:
                for book in connection.get_logbooks(lazy=True):
                    if book.meta.get("told") != book.name:
                        self._problem(f"book {stores.row(book)} is not what it was")
        except REFUSED:
            pass
        except BaseException:
            self._problem(f"books: {traceback.format_exc()}")

    def _go_on(self, refused: set[str]) -> None:
        """Run a flow that loads, and one that does not."""
        fine = sorted(set(self.original.pictures) - refused)
        for number in [*self.chance.sample(fine, min(1, len(fine))), *sorted(refused)[:1]]:
            self._ran = self._ran | {number}
            try:
                with backends.backend(self.conf) as backend:
                    engine = _engine(self.folder, backend, int(number))
                    if engine.storage.get_flow_state() not in engines.ENDED:
                        with contextlib.suppress(ValueError, exceptions.WrappedFailure):
                            engine.run()
                    state = engine.storage.get_flow_state()
                    if state not in (states.SUCCESS, states.REVERTED):
                        self._problem(f"flow {number} ended in {state}")
            except REFUSED as error:
                if number not in refused:
                    # Damage that only a writer comes across: a lease, an index.
                    self.counts["refused to run"] += 1
                    if len(str(error)) < 20:
                        self._problem(f"{error!r} says nothing")
            except BaseException:
                self._problem(f"running flow {number}: {traceback.format_exc()}")
            else:
                if number in refused:
                    self._problem(f"flow {number} does not load, but runs")


def _difference(found: pictures.Picture, wanted: pictures.Picture) -> str:
    for name in sorted({*found["atoms"], *wanted["atoms"]}):
        mine, theirs = found["atoms"].get(name), wanted["atoms"].get(name)
        if mine != theirs:
            return f"{name}: {mine!r:.400}, not {theirs!r:.400}"
    return f"{found['state']}, not {wanted['state']}"
