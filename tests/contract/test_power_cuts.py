"""Durability of stores after power cuts and killed processes.

A program writes. After each of its calls that change the disk, and for each way in which unsynced
data may be lost, the store is opened as it would be found.
"""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.seams import ledgers, stores, transports
from wbengine.persistence import backends

from . import disks

TURNS = 2

#: The program reports starts and ends as lines of another file.
WRITER = """
import json, os, sys
from wbengine.persistence import backends, models

conf, told = json.loads(sys.argv[1]), os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
say = lambda *words: os.write(told, json.dumps(words).encode() + b"\\n")
with backends.backend(conf) as backend, backend.get_connection() as connection:
    book, flow = models.LogBook("b", uuid="book"), models.FlowDetail("f", uuid="flow")
    flow.add_all([models.TaskDetail("a", uuid="a"), models.TaskDetail("b", uuid="b")])
    book.add(flow)
    connection.save_logbook(book)
    lease = connection.acquire_lease("flow", "me", 60)
    say(0)
    for turn in range(1, int(sys.argv[3]) + 1):
        flow.meta["turn"] = turn
        for atom in flow:
            atom.results = [turn] * 300
        connection.save_changes(flow, flow, lease=lease)
        say(turn)
    connection.release_lease(lease)
    say("given back")
"""


@pytest.fixture
def life(tmp_path: Path) -> tuple[Path, list[disks.Call]]:
    """Folder of the store, and the calls on the disk of the program that wrote it.

    The store is in a folder that it creates. Servers guarantee the durability of theirs.
    """
    root = tmp_path / "root"
    root.mkdir()
    conf = stores.conf("dir", root)
    script = [sys.executable, "-c", WRITER, json.dumps(conf), str(tmp_path / "told"), str(TURNS)]
    return root, disks.trace(script, tmp_path / "trace")


def turn_in(folder: Path) -> int | None:
    """Return the number of the stored save, checked for completeness; None without a flow."""
    try:
        conf = stores.conf("dir", folder)
        with backends.backend(conf) as backend, backend.get_connection() as connection:
            books = list(connection.get_logbooks())
            if not books:
                return None
            (flow,) = books[0]
            turn: int = flow.meta.get("turn", 0)
            assert {tuple(atom.results or ()) for atom in flow} == {(turn,) * 300 if turn else ()}
            # A later engine can continue with a new lease.
            lease = connection.acquire_lease("flow", "you", 60, dead=flow.epoch)
            assert lease.epoch == 2 or (lease.epoch == 1 and not turn)
            connection.save_changes(flow, flow, lease=lease)
            return turn
    finally:
        shutil.rmtree(folder)


@pytest.mark.slow
def test_power_cut_at_any_call_loses_no_confirmed_write(
    life: tuple[Path, list[disks.Call]], tmp_path: Path
) -> None:
    root, calls = life
    disk = disks.Disk(root)
    confirmed: Any = None
    seen = set()
    for number, call in enumerate(calls):
        changed = disk.do(call)
        if call.name == "write" and call.arguments[1].endswith(b"]\n"):
            with contextlib.suppress(ValueError):
                (confirmed,) = json.loads(call.arguments[1])
                changed = True
        if not changed or confirmed is None:
            continue
        done = TURNS if confirmed == "given back" else confirmed
        for names in (True, False):
            for data in (True, False):
                left = tmp_path / f"left-{number}-{names}-{data}"
                disk.leave(left, names=names, data=data)
                stored = turn_in(left)
                assert stored in (done, done + 1), (number, call, names, data)
                seen.add(stored)
    assert confirmed == "given back" and seen == set(range(TURNS + 1))


# Data that the next save makes durable, or that is not needed after a power cut, is not synced.

RUNNER = """
import json, os, sys
from wbengine import engines, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends

class Add(task.Task):
    def execute(self):
        return 1

told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
with backends.backend(json.loads(sys.argv[1])) as backend:
    for word in (b"made]", b"ran]"):
        engines.run(linear_flow.Flow("f").add(Add()), backend=backend)
        os.write(told, word)
"""


@pytest.mark.slow
def test_flow_of_one_task_syncs_four_times(tmp_path: Path) -> None:
    """Syncs: save the flow, start, result and end."""
    conf = stores.conf("sqlite", tmp_path)
    script = [sys.executable, "-c", RUNNER, json.dumps(conf), str(tmp_path / "told")]
    words = [
        "sync" if "sync" in call.name else call.arguments[1]
        for call in disks.trace(script, tmp_path / "trace")
        if "sync" in call.name or call.name == "write"
    ]
    assert words[words.index(b"made]") : words.index(b"ran]")].count("sync") == 4


# Brokers in folders: a process may be killed between any two calls.

SENDER = """
import json, os, sys
from tests.seams import transports

told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
say = lambda *words: os.write(told, json.dumps(words).encode() + b"\\n")
with transports.connection(sys.argv[1]) as connection:
    channel = connection.channel()
    transports.declare(channel, "q", "k")
    say("sent", 0)
    for number in range(1, 4):
        body = bytes([number]) * 5000 * number
        channel.publish(body)
        say("sent", number)
    for number in range(1, 4):
        message = channel.get("q")
        say("taken", number)
        message.ack()
        say("settled", number)
"""


def bodies_in(folder: Path) -> list[int]:
    """Return the numbers of complete messages of a broker."""
    site = transports.Site("filesystem", folder)
    channel = site.connect().channel()
    bodies = []
    while (message := channel.get("q")) is not None:
        number = message.body[0]
        assert message.body == bytes([number]) * 5000 * number
        bodies.append(number)
    assert not site.folder.rejected
    site.close()
    shutil.rmtree(folder)
    return bodies


@pytest.mark.slow
def test_process_killed_at_any_call_loses_or_tears_no_message(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    script = [sys.executable, "-c", SENDER, f"filesystem://{root}/a", str(tmp_path / "told")]
    calls = disks.trace(script, tmp_path / "trace")
    disk = disks.Disk(root)
    confirmed = ("", 0)
    seen = set()
    for number, call in enumerate(calls):
        changed = disk.do(call)
        if call.name == "write" and call.arguments[1].startswith((b'["sent', b'["taken', b'["set')):
            confirmed = tuple(json.loads(call.arguments[1]))
            changed = True
        if not changed or not confirmed[0]:
            continue
        left = tmp_path / f"left-{number}"
        disk.leave(left, names=True, data=True)
        bodies = bodies_in(left)
        what, last = confirmed
        if what == "sent":
            allowed = [list(range(1, last + 1)), list(range(1, last + 2))]
        elif what == "taken":
            allowed = [list(range(last, 4)), list(range(last + 1, 4))]
        else:
            allowed = [list(range(last + 1, 4))]
        assert bodies in allowed, (number, call, confirmed)
        seen.add(tuple(bodies))
    assert confirmed == ("settled", 3) and len(seen) == 6


CLAIMER = """
import os, sys
from tests.seams import ledgers

told = os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT)
ledger = ledgers.open_ledger(sys.argv[1])
ledger.open_many([("a", 1), ("b", 1)])
ledger.close()  # from here on they are on the disk
for folder in (sys.argv[1][6:], os.path.dirname(sys.argv[1][6:])):
    os.fsync(os.open(folder, os.O_RDONLY))
ledger = ledgers.open_ledger(sys.argv[1])
ledger.claim("a", 1, "w")
os.write(told, b"claimed")
ledger.finish("a", 1, "w", b"r")
ledger.open("c", 1)
os.write(told, b"done")
"""


@pytest.mark.slow
def test_power_cut_at_any_call_grants_no_claim_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A claimed row cannot be claimed again, whatever part of the folder was synced."""
    root = tmp_path / "root"
    root.mkdir()
    script = [sys.executable, "-c", CLAIMER, f"dir://{root}/a", str(tmp_path / "told")]
    calls = disks.trace(script, tmp_path / "trace")
    disk = disks.Disk(root)
    granted = False
    seen = set()
    ledgers.simulate_reboot(monkeypatch)
    for number, call in enumerate(calls):
        changed = disk.do(call)
        if call.name == "write" and call.arguments[1] == b"claimed":
            granted = changed = True
        if not changed or not granted:
            continue
        for names in (True, False):
            for data in (True, False):
                after = tmp_path / f"left-{number}-{names}-{data}"
                disk.leave(after, names=names, data=data)
                with contextlib.closing(ledgers.open_ledger(f"dir://{after}/a")) as ledger:
                    verdict = ledger.claim("a", 1, "other").verdict
                shutil.rmtree(after)
                assert verdict != ledgers.GRANTED, (number, call, names, data)
                seen.add(verdict)
    assert seen >= {ledgers.HELD, ledgers.DONE}
