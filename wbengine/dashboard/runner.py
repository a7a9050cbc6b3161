"""Flows run in processes of their own: what is started from a page outlives the dashboard."""

from __future__ import annotations

import logging
import os
import subprocess
import tempfile
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, BinaryIO, Final

from wbengine import _import_path, exceptions

__all__ = ["Failed", "Runner"]

LOG: Final = logging.getLogger(__name__)

#: Seconds in which a command that cannot begin has said so.
PATIENCE: Final = 2.0
#: Of what a command printed, so many of the last bytes are read, and so many lines are shown.
_READ: Final = 65_536
_LINES: Final = 20
#: Characters of a line that is shown.
_LONGEST: Final = 1_000
#: The exit code of a command whose flow was suspended, or is run by another process.
_TRY_AGAIN: Final = 75
#: Commands are remembered for so many flows.
_REMEMBERED: Final = 200


@dataclass(frozen=True, slots=True)
class Failed:
    """A command that failed: 'resume', 'retry' or 'revert', its exit code, when it ended (in unix
    seconds), and the last lines that it printed, masked.
    """

    action: str
    code: int
    at: float
    said: str

    @property
    def was_suspended(self) -> bool:
        """Whether the flow may have been suspended, as somebody wished, or else is busy."""
        return self.code == _TRY_AGAIN

    def __str__(self) -> str:
        return f"flow {self.action} failed with exit code {self.code}: {self.said}"


class Runner:
    """Starts `python -m wbengine flow ...`, and does not wait for its end.

    `environment` is added to that of this process: where the store, the broker and the ledger are
    (`WBENGINE_*`), for a command can be read by every user of the host.  A command that fails
    within `patience` seconds is an error of the call that started it.
    """

    def __init__(self, environment: Mapping[str, str], patience: float = PATIENCE) -> None:
        self._environment = dict(environment)
        self._patience = patience
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, _Command] = OrderedDict()

    def start(
        self,
        what: str,
        uuid: str,
        mask: Callable[[str], str],
        failed_late: Callable[[Failed], None] = lambda failed: None,
    ) -> None:
        """Have a flow run: 'resume', 'revert' or 'retry' it.

        What the command printed is logged when it ends, after `mask`.  One that fails after this
        call has returned is told to `failed_late`, in a thread of its own.

        :raises ExecutionFailure: it cannot be started, or failed at once; the error says how.
        """
        try:
            command = _Command(what, uuid, self._environment, mask, failed_late)
        except OSError as error:
            raise exceptions.ExecutionFailure(f"flow {what} cannot be started: {error}") from error
        with self._lock:
            self._latest.pop(uuid, None)
            self._latest[uuid] = command
            while len(self._latest) > _REMEMBERED:
                self._latest.popitem(last=False)
        failed = command.failed_within(self._patience)
        if failed is not None:
            raise exceptions.ExecutionFailure(str(failed))

    def failed(self, uuid: str) -> Failed | None:
        """How the latest command for a flow failed; None: it did not, or there was none."""
        with self._lock:
            command = self._latest.get(uuid)
        return None if command is None else command.failed


class _Command(threading.Thread):
    """Waits for the end of a command; the thread does not keep this process from ending."""

    def __init__(
        self,
        what: str,
        uuid: str,
        environment: Mapping[str, str],
        mask: Callable[[str], str],
        failed_late: Callable[[Failed], None],
    ) -> None:
        super().__init__(name=f"flow {what} {uuid}", daemon=True)
        self.failed: Failed | None = None
        self._what = what
        self._mask = mask
        self._failed_late = failed_late
        self._lock = threading.Lock()
        self._is_late = False
        # A pipe would end with this process; `run` closes it.
        self._printed: Any = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*_import_path.COMMAND, "flow", what, "--yes", "--", uuid],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._printed,
            env={**os.environ, "NO_COLOR": "1", **environment},
            start_new_session=True,
        )
        self.start()

    def failed_within(self, seconds: float) -> Failed | None:
        """How it failed by then; what fails later is told to `failed_late`."""
        self.join(seconds)
        with self._lock:
            self._is_late = True
            return self.failed

    def run(self) -> None:
        code = self._process.wait()
        with self._printed as printed:
            said = _last_lines(printed, self._mask)
        level = logging.ERROR if code else logging.INFO
        LOG.log(level, "%s: exit code %s: %s", self.name, code, said)
        with self._lock:
            is_late = self._is_late
            if code:
                self.failed = Failed(self._what, code, time.time(), said)
        if self.failed is not None and is_late:
            self._failed_late(self.failed)


def _last_lines(printed: BinaryIO, mask: Callable[[str], str]) -> str:
    begin = max(0, printed.seek(0, os.SEEK_END) - _READ)
    printed.seek(begin)
    if begin:
        printed.readline()  # half a line may hold half a secret, which is not known to the mask
    lines = mask(printed.read().decode(errors="replace")).splitlines()
    return "\n".join([line[:_LONGEST] for line in lines if line.strip()][-_LINES:]).strip()
