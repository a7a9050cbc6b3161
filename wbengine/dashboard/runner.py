"""Flows run in processes of their own: what is started from a page outlives the dashboard."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Mapping
from typing import Any, Final

from wbengine import exceptions

__all__ = ["Runner"]

LOG: Final = logging.getLogger(__name__)

#: Seconds in which a command that cannot begin has said so.
PATIENCE: Final = 2.0
#: Of what a command said, so many of the last bytes are read.
_SAID: Final = 4000
#: How a command ends that ran the flow: to whatever end.
_RAN: Final = frozenset({0, 1})


class Runner:
    """Starts `python -m wbengine flow ...`, and does not wait for its end.

    `environment` is added to that of this process: where the store, the broker and the ledger are
    (`WBENGINE_*`), for a command can be read by every user of the host.
    """

    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = dict(environment)

    def start(self, what: str, uuid: str, mask: Callable[[str], str]) -> None:
        """Have a flow run: 'resume', 'revert' or 'retry' it.

        What the command says is logged when it ends, after `mask`.

        :raises ExecutionFailure: it ended at once, and badly; the error says how.
        """
        command = _Command(what, uuid, self._environment, mask)
        command.join(PATIENCE)
        if command.code is not None and command.code not in _RAN:
            raise exceptions.ExecutionFailure(
                f"flow {what} ended with exit code {command.code}: {command.last_line}"
            )


class _Command(threading.Thread):
    """Waits for the end of a command; the thread does not keep this process from ending."""

    def __init__(
        self, what: str, uuid: str, environment: Mapping[str, str], mask: Callable[[str], str]
    ) -> None:
        super().__init__(name=f"flow {what} {uuid}", daemon=True)
        self.code: int | None = None
        self.last_line = ""
        self._mask = mask
        # A pipe would end with this process; `run` closes it.
        self._said: Any = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-m", "wbengine", "flow", what, uuid, "--yes"],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._said,
            env={**os.environ, "NO_COLOR": "1", **environment},
            start_new_session=True,
        )
        self.start()

    def run(self) -> None:
        code = self._process.wait()
        with self._said as said:
            said.seek(max(0, said.seek(0, os.SEEK_END) - _SAID))
            text = self._mask(said.read().decode(errors="replace"))
        self.last_line = next((line for line in reversed(text.splitlines()) if line.strip()), "")
        self.code = code
        level = logging.INFO if code in _RAN else logging.ERROR
        LOG.log(level, "%s: exit code %s: %s", self.name, code, text.strip())
