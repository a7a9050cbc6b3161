"""Commands that run flows in separate processes, which outlive the dashboard."""

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

from wbengine import exceptions
from wbengine._imports import search_path

__all__ = ["FailedCommand", "Runner"]

LOG: Final = logging.getLogger(__name__)

#: Seconds to wait for a command that fails at once.
FAILURE_SECONDS: Final = 2.0
#: Number of last bytes of a command's output that are read, and of lines that are shown.
_MAX_OUTPUT_BYTES: Final = 65_536
_MAX_LINES: Final = 20
_MAX_LINE_CHARS: Final = 1_000
#: Exit code of a command whose flow was suspended or is run by another process.
_EXIT_TRY_AGAIN: Final = 75
_CONFIRM_OPTIONS: Final = {"revert": ("--yes",)}
#: Variables of the option --reason of these actions. Every user of the host could read an argument.
_REASON_VARIABLES: Final = {
    "retry": "WBENGINE_FLOW_RETRY_REASON", "revert": "WBENGINE_FLOW_REVERT_REASON",
}  # fmt: skip
#: Maximum number of flows whose latest command is remembered.
_MAX_COMMANDS: Final = 200


@dataclass(frozen=True, slots=True)
class FailedCommand:
    """A failed command: exit code, end in unix seconds, and last lines of output, masked.

    `action` is 'resume', 'retry' or 'revert'.
    """

    action: str
    code: int
    at: float
    output: str

    @property
    def was_suspended(self) -> bool:
        """Whether the flow was suspended on request, or is run by another process."""
        return self.code == _EXIT_TRY_AGAIN

    def __str__(self) -> str:
        return f"`wbengine flow {self.action}` failed with exit code {self.code}: {self.output}"


class Runner:
    """Starts `python -m wbengine flow ...` without waiting for its end. Thread-safe.

    :param environment: variables for the command (`WBENGINE_*`): locations of the store, broker and
        ledger. Every user of the host could read command-line arguments.
    :param patience: seconds within which a failure of the command is an error of `start`.
    """

    def __init__(self, environment: Mapping[str, str], patience: float = FAILURE_SECONDS) -> None:
        self._environment = dict(environment)
        self._patience = patience
        self._lock = threading.Lock()
        self._latest: OrderedDict[str, _Command] = OrderedDict()

    def start(
        self,
        action: str,
        uuid: str,
        mask: Callable[[str], str],
        on_late_failure: Callable[[FailedCommand], None] = lambda failed: None,
        *,
        reason: str | None = None,
    ) -> None:
        """Start a command for a flow.

        When the command ends, its output is logged after `mask`.

        :param action: 'resume', 'revert' or 'retry'.
        :param on_late_failure: called in a thread if the command fails after this call returned.
        :param reason: text for the history of the flow, unless it is only resumed.
        :raises ExecutionFailure: if the command cannot be started or fails at once.
        """
        environment = self._environment
        if reason is not None and action in _REASON_VARIABLES:
            environment = {**environment, _REASON_VARIABLES[action]: reason}
        try:
            command = _Command(action, uuid, environment, mask, on_late_failure)
        except OSError as error:
            raise exceptions.ExecutionFailure(
                f"cannot start `wbengine flow {action}`: {error}"
            ) from error
        with self._lock:
            self._latest.pop(uuid, None)
            self._latest[uuid] = command
            while len(self._latest) > _MAX_COMMANDS:
                self._latest.popitem(last=False)
        failed = command.failed_within(self._patience)
        if failed is not None:
            raise exceptions.ExecutionFailure(str(failed))

    def failed(self, uuid: str) -> FailedCommand | None:
        """Return the failure of the latest command for a flow, or None."""
        with self._lock:
            command = self._latest.get(uuid)
        return None if command is None else command.failed


class _Command(threading.Thread):
    """A running command. Its daemon thread waits for the end of the process."""

    def __init__(
        self,
        action: str,
        uuid: str,
        environment: Mapping[str, str],
        mask: Callable[[str], str],
        on_late_failure: Callable[[FailedCommand], None],
    ) -> None:
        super().__init__(name=f"flow {action} {uuid}", daemon=True)
        self.failed: FailedCommand | None = None
        self._action = action
        self._mask = mask
        self._on_late_failure = on_late_failure
        self._lock = threading.Lock()
        self._is_late = False
        # A pipe would break when this process ends. `run` closes the file.
        self._output_file: Any = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [*search_path.COMMAND, "flow", action, *_CONFIRM_OPTIONS.get(action, ()), "--", uuid],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._output_file,
            env={**os.environ, "NO_COLOR": "1", **environment},
            start_new_session=True,
        )
        self.start()

    def failed_within(self, seconds: float) -> FailedCommand | None:
        """Return a failure within `seconds`, or None. `on_late_failure` receives a later one."""
        self.join(seconds)
        with self._lock:
            self._is_late = True
            return self.failed

    def run(self) -> None:
        code = self._process.wait()
        with self._output_file as printed:
            output = _read_last_lines(printed, self._mask)
        level = logging.ERROR if code else logging.INFO
        LOG.log(level, "%s: exit code %s: %s", self.name, code, output)
        with self._lock:
            is_late = self._is_late
            if code:
                self.failed = FailedCommand(self._action, code, time.time(), output)
        if self.failed is not None and is_late:
            self._on_late_failure(self.failed)


def _read_last_lines(printed: BinaryIO, mask: Callable[[str], str]) -> str:
    begin = max(0, printed.seek(0, os.SEEK_END) - _MAX_OUTPUT_BYTES)
    printed.seek(begin)
    if begin:
        # Half a line may contain half a secret, which the mask cannot recognize.
        printed.readline()
    lines = mask(printed.read().decode(errors="replace")).splitlines()
    return "\n".join(
        [line[:_MAX_LINE_CHARS] for line in lines if line.strip()][-_MAX_LINES:]
    ).strip()
