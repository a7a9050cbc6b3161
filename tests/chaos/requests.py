"""A process that suspends, resumes and retries submitted flows at random moments.

    python -m tests.chaos.requests STORE FOLDER NUMBER COUNT

`Requests` starts `COUNT` of these processes, and again if they are killed. Each handles its own
part of the flows. It ends when its flows have ended and have no command.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.support import python, servers
from wbengine import exceptions, operations, states
from wbengine.persistence import _commands, backends
from wbengine.persistence import base as persistence

#: Maximum number of retries of a flow, so that the run ends.
MAX_RETRIES = 3
#: Errors of a request that comes too late, or of a store that was killed.
REFUSALS = (exceptions.InvalidState, exceptions.FlowBusy, exceptions.StorageFailure)
_SENT, _ACCEPTED = "sent", "accepted"


class Requests:
    """The files that these processes share with the program that starts them."""

    def __init__(self, folder: Path) -> None:
        self._flows = folder / "requested.json"
        self._log = folder / "requests"
        self._calm = folder / "calm"

    def write_flows(self, uuids: Mapping[str, str]) -> None:
        self._flows.write_text(json.dumps(dict(uuids)), encoding="utf-8")
        self._log.touch()

    def calm(self) -> None:
        """Request that the processes suspend no more flows, and end.

        Before, they retry each flow that failed once.
        """
        self._calm.touch()

    @property
    def is_calm(self) -> bool:
        return self._calm.exists()

    def part(self, number: int, count: int) -> dict[str, str]:
        """Return the names of a part of the flows by uuid."""
        flows: dict[str, str] = json.loads(self._flows.read_text(encoding="utf-8"))
        return dict(list(flows.items())[number::count])

    def note(self, what: str, name: str) -> None:
        with self._log.open("a", encoding="utf-8") as file:
            file.write(f"{name} {what}\n")

    def retries(self) -> dict[str, range]:
        """Return the possible numbers of retries of each flow.

        A process that was killed while it sent a request has perhaps stored it.
        """
        counts = Counter(self._log.read_text(encoding="utf-8").splitlines())
        names = {line.partition(" ")[0] for line in counts}
        return {
            name: range(counts[f"{name} {_ACCEPTED}"], counts[f"{name} {_SENT}"] + 1)
            for name in names
        }


def start(store: str, folder: Path, number: int, count: int) -> Any:
    """Start a process and return it."""
    with open(folder / "requests.log", "ab") as log:
        return python.start(
            ["-m", __name__, store, str(folder), str(number), str(count)],
            cwd=servers.REPOSITORY,
            env=dict(os.environ),
            stdout=log,
            stderr=log,
            die_with_parent=True,
        )


def run(store: str, folder: Path, number: int, count: int) -> None:
    chance = random.Random()
    requests = Requests(folder)
    left = requests.part(number, count)
    with contextlib.ExitStack() as opened:
        backend: persistence.Backend | None = None
        while left:
            is_calm = requests.is_calm
            uuids = list(left) if is_calm else chance.sample(list(left), 1)
            for uuid in uuids:
                with contextlib.suppress(*REFUSALS):
                    backend = backend or opened.enter_context(backends.backend(store))
                    if not _change(backend, uuid, left[uuid], requests) and is_calm:
                        del left[uuid]
            time.sleep(chance.uniform(0.02, 0.3))


def _read(
    backend: persistence.Backend, uuid: str
) -> tuple[str, bool, persistence.FlowCommand | None]:
    """Return the state of a flow, whether a command suspended it, and its command."""
    with contextlib.closing(backend.get_connection()) as connection:
        detail = connection.get_flow_details(uuid, lazy=True)
        command = connection.commands([uuid]).get(uuid)
    return detail.state or states.PENDING, detail.is_suspended_by_command, command


def _change(backend: persistence.Backend, uuid: str, name: str, requests: Requests) -> bool:
    """Resume a flow that was suspended; otherwise retry or suspend it.

    :returns: False if the flow has ended and is not changed.
    """
    state, is_suspended, command = _read(backend, uuid)
    is_suspending = command is not None and command.what == _commands.SUSPEND
    is_calm = requests.is_calm
    if is_suspended or is_suspending:
        if command is None or is_suspending:
            operations.request(backend, uuid, _commands.RESUME)
    elif state not in states.FLOW_ENDED:
        if not is_calm:
            operations.suspend(backend, uuid)
    elif command is None:
        limit = 1 if is_calm else MAX_RETRIES
        if state != states.REVERTED or requests.retries().get(name, range(1))[-1] >= limit:
            return False
        requests.note(_SENT, name)
        if operations.request(backend, uuid, _commands.RETRY).is_new:
            requests.note(_ACCEPTED, name)
    return True


if __name__ == "__main__":
    run(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
