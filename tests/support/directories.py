"""A flow in a folder, and what processes that share the folder do to it.

A fresh interpreter forks them, so the imports are paid for once.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import pathlib
import signal
from collections.abc import Callable
from typing import Any

from tests.contract import records
from tests.crashing import points
from tests.support import fresh
from wbengine import _crash, exceptions, states
from wbengine.persistence import base, leases, models
from wbengine.persistence.backends import directory
from wbengine.persistence.backends.directory import DirectoryBackend, files
from wbengine.types.outline import Outline, OutlineNode


class Kept:
    """A store with one flow, whose turns are remembered."""

    def __init__(self, root: pathlib.Path, atoms: int = 3) -> None:
        self.root = root
        self.backend = DirectoryBackend({"path": str(root)})
        self.connection = self.backend.get_connection()
        self.book, self.flow = models.LogBook("b"), models.FlowDetail("f")
        self.book.add(self.flow)
        self.flow.add_all([models.TaskDetail(f"t{number}") for number in range(atoms)])
        self.connection.save_logbook(self.book)
        self.folder = root / "flows" / self.flow.uuid
        self.turns = 0

    def turn(self, lease: leases.Lease | None = None) -> None:
        """Write one; it changes the flow, an atom and its items."""
        self.turns += 1
        atom = list(self.flow)[self.turns % len(self.flow)]
        self.flow.meta["turn"] = self.turns
        atom.attempt = self.turns
        atom.put(states.SUCCESS, f"result {self.turns}")
        atom.items = models.Items(self.turns, [self.turns, "ä"])
        self.connection.save_changes(
            self.flow, [atom], items={atom.uuid: list(atom.items)}, lease=lease
        )

    def fresh(self) -> base.Connection:
        """What another process would see it by."""
        return DirectoryBackend({"path": str(self.root)}).get_connection()

    def picture(self) -> Any:
        return records.of_flow(self.fresh().get_flow_details(self.flow.uuid))

    def file(self, kind: str) -> pathlib.Path:
        (found,) = self.folder.glob(f"{kind}*")
        return found


def run(task: str, *arguments: str) -> Any:
    """What `task(*arguments)`, a function of this module, returned in a fresh interpreter."""
    return fresh.call(__name__, task, *arguments)


def _fork(task: Callable[..., None], *arguments: Any) -> Any:
    child = multiprocessing.get_context("fork").Process(target=task, args=arguments)
    child.start()
    return child


# -- crashes ---------------------------------------------------------------------------------------


def crash_points() -> list[str]:
    """All places of this backend."""
    folder = pathlib.Path(directory.__file__).parent
    return [point.name for point in points.find(folder)]


def a_life(root: pathlib.Path, done: Callable[[Any], None]) -> None:
    """All that a backend does; `done` is told after each step what is to be kept from now on."""
    kept = Kept(root)
    connection = kept.connection
    done((kept.book.uuid, 0))
    lease = connection.take_lease(kept.flow.uuid, "me", 15.0)
    kept.turn(lease)
    done((kept.book.uuid, 1))
    journal = kept.file("journal")
    with journal.open("ab") as file:
        file.write(b"the end of another")
    connection.renew_lease(lease, 15.0)
    kept.turn(lease)
    done((kept.book.uuid, 2))
    outline = Outline((OutlineNode("f", "flow", None),), ())
    connection.save_outline(kept.flow.uuid, outline, lease=lease)
    wish = base.FlowCommand("suspend", reason="it is late")
    assert connection.put_command(lease, wish)
    connection.clear_command(lease, wish)
    assert connection.put_command(lease, wish)  # nobody hears of that one
    connection.give_back_lease(lease)
    kept.turn()
    done((kept.book.uuid, 3))
    kept.book.add(models.FlowDetail("more"))
    kept.flow.epoch = lease.epoch
    connection.save_logbook(kept.book)
    done((kept.book.uuid, 3))
    connection.destroy_logbook(kept.book.uuid)
    done(None)
    other, alone = models.LogBook("other"), models.FlowDetail("alone")
    other.add(alone)
    connection.save_logbook(other)
    connection.destroy_flow(alone.uuid)


def crash_everywhere(root: str) -> dict[str, Any]:
    """By place: how a process ended that was to end there, and what it had done by then."""
    found = {}
    for place in crash_points():
        ours, theirs = multiprocessing.Pipe(duplex=False)
        child = _fork(_die_at, place, pathlib.Path(root, place), theirs)
        theirs.close()
        told = []
        try:
            while True:
                told.append(ours.recv())
        except EOFError:
            child.join()
        found[place] = child.exitcode, told
    return found


def _die_at(name: str, root: pathlib.Path, pipe: Any) -> None:
    def hook(place: str) -> None:
        if place == name:
            os._exit(9)

    _crash.install(hook)
    logging.disable()
    a_life(root, pipe.send)


# -- several processes -----------------------------------------------------------------------------


def read_while_another_folds(path: str) -> list[int]:
    """The turns that were seen, one after the other."""
    kept = Kept(pathlib.Path(path))
    ours, theirs = multiprocessing.Pipe()
    child = _fork(_fold_often, path, kept.flow.uuid, theirs)
    seen = [0]
    while len(set(seen)) < 30:  # how many are written meanwhile is a matter of luck
        flow = kept.connection.get_flow_details(kept.flow.uuid)
        seen.append(flow.meta.get("turn", 0))
        assert {atom.results for atom in flow} == {seen[-1] or None}
    ours.send("enough")
    seen.append(ours.recv())
    child.join()
    return seen


def _fold_often(path: str, uuid: str, pipe: Any) -> None:
    connection = DirectoryBackend({"path": path}).get_connection()
    flow = connection.get_flow_details(uuid)
    turn = 0
    while not pipe.poll():
        lease = connection.take_lease(uuid, "me", 15.0)
        for _ in range(3):
            turn += 1
            flow.meta["turn"] = turn
            for atom in flow:
                atom.put(states.SUCCESS, turn)
            connection.save_changes(flow, flow, lease=lease)
        connection.give_back_lease(lease)
    pipe.send(turn)


def freeze(path: str) -> None:
    """Write a turn, and stop in the middle of it, as if frozen."""
    connection = DirectoryBackend({"path": path}).get_connection()
    (book,) = connection.get_logbooks()
    (flow,) = book
    flow.state = states.RUNNING

    def stop(place: str) -> None:
        if place == "dir.after-append":
            os.kill(os.getpid(), signal.SIGSTOP)

    _crash.install(stop)
    connection.save_changes(flow, flow)


def share_with_a_child(path: str) -> int | None:
    """A child writes with the parent's objects, while the parent is at it; how it ended."""
    kept = Kept(pathlib.Path(path))
    lease = kept.connection.take_lease(kept.flow.uuid, "me", 15.0)

    def write() -> None:
        lock = files.lock
        files.lock = lambda fd, path, **_: lock(fd, path, patience=0.05)
        try:
            kept.turn(lease)
        except exceptions.StorageFailure as error:
            assert "is locked by another process" in str(error)
        else:
            raise AssertionError("two at once")
        files.lock = lock
        theirs.send("refused")
        theirs.recv()
        kept.turn(lease)

    ours, theirs = multiprocessing.Pipe()
    with kept.backend._store.writing(kept.flow.uuid, keep=True):
        child = _fork(write)
        assert ours.poll(60.0)
    ours.send("go on")
    child.join(timeout=60.0)
    ended: int | None = child.exitcode
    child.kill()
    kept.turn(lease)
    kept.connection.give_back_lease(lease)
    return ended
