"""Start of a flow in a separate process that outlives this one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wbengine._cli import config, errors
from wbengine._imports import search_path

if TYPE_CHECKING:
    from wbengine._cli.context import Context
    from wbengine.persistence import base as persistence

__all__ = ["start"]

#: Maximum time in seconds until the process has started the flow, and the interval between checks.
_START_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.05


def start(
    context: Context,
    operation: str,
    uuid: str,
    engine: str | None,
    *,
    deadline: float | None = None,
    report: str | None = None,
    reason: str | None = None,
    factory: str | None = None,
) -> int:
    """Start a process that runs a stored flow, wait until the flow starts, and print the uuid.

    :param operation: 'resume', 'retry' or 'revert'.
    :param factory: the function that built the flow, if the user named it: the process may call it.
    :returns: the exit code.
    :raises Failed: if the process ends at once or the flow does not start in time; the message
        contains the path of the log.
    """
    log = _log_file(uuid)
    words = [*search_path.COMMAND, "flow", operation, "--no-progress"]
    words += ["--yes"] if operation == "revert" else []
    words += [] if deadline is None else ["--deadline", str(deadline)]
    words += [] if report is None else ["--report", os.path.abspath(report)]
    words += [] if reason is None else [f"--reason={reason}"]
    words += ["--", uuid]  # The uuid may start with dashes.
    with context.backend() as backend, backend.get_connection() as connection:
        # The process may start the flow at once.
        before = connection.get_flow_details(uuid, lazy=True).epoch
        with log.open("ab") as stream:
            process = subprocess.Popen(
                words,
                env=_environment(context, operation, engine, factory),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stream,
                start_new_session=True,
            )
        try:
            _wait_for_start(connection, uuid, before, process, log)
        except KeyboardInterrupt as error:
            raise errors.Failed(
                f"interrupted; process {process.pid} still runs the flow; log: {log}; to watch it:"
                f" wbengine flow watch {uuid}",
                errors.INTERRUPTED,
            ) from error
    printer = context.printer
    printer.document("flow-detach/1", {"uuid": uuid, "pid": process.pid, "log": str(log)})
    printer.line(uuid)
    printer.note(
        f"process {process.pid} runs the flow; log: {log}; to watch it: wbengine flow watch {uuid}"
    )
    return errors.OK


def _wait_for_start(
    connection: persistence.Connection,
    uuid: str,
    before: int,
    process: subprocess.Popen[bytes],
    log: Path,
) -> None:
    """Wait until an engine has started the flow.

    :param before: epoch of the flow before the process was started.
    """
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until:
        code = process.poll()
        if connection.get_flow_details(uuid, lazy=True).epoch != before:
            return
        if code:
            message = _error_message(log) or f"exit code {code}"
            raise errors.Failed(f"the flow did not start: {message} (log: {log})", code)
        time.sleep(_POLL_SECONDS)
    raise errors.Failed(
        f"the flow did not start within {_START_SECONDS:g} s (log: {log})", errors.TRY_AGAIN
    )


def _error_message(log: Path) -> str:
    *_, last = "", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return last.partition(": error: ")[2] or last


def _environment(
    context: Context, operation: str, engine: str | None, factory: str | None
) -> dict[str, str]:
    variables = {**os.environ, **context.environment()}
    if factory is not None and not context.settings.flows:
        variables["WBENGINE_FLOWS"] = factory
    if engine is not None:
        variables[f"WBENGINE_FLOW_{operation.upper()}_ENGINE"] = engine
    return variables


def _log_file(uuid: str) -> Path:
    folder = config.state_folder() / "logs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.Failed(f"cannot create {folder}: {errors.reason(error)}") from error
    # The uuid comes from a record of the store and can contain any characters.
    return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', uuid)[:64]}.log"
