"""Lets a flow run in a process of its own, which outlives this one."""

from __future__ import annotations

import os
import re
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wbengine import _import_path
from wbengine.cli import config, errors

if TYPE_CHECKING:
    from wbengine.cli.context import Context

__all__ = ["start"]

#: Seconds in which the process must have begun with the flow, and between two looks at it.
_BEGINNING: Final = 30.0
_PAUSE: Final = 0.05


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
    """Start a process that goes on with a flow, see that it has begun, and print the uuid.

    :param operation: 'resume', 'retry' or 'revert'.
    :param factory: what made the flow, where that was named here: it may do so there.
    :raises Failed: the process ended at once; the line says where its log is.
    """
    log = _log_file(uuid)
    words = [*_import_path.COMMAND, "flow", operation, "--no-progress", "--yes"]
    words += [] if deadline is None else ["--deadline", str(deadline)]
    words += [] if report is None else ["--report", os.path.abspath(report)]
    words += [] if reason is None else [f"--reason={reason}"]
    words += ["--", uuid]  # a record may say it is called "--help"
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
        _wait(context, uuid, process, log)
    except KeyboardInterrupt as error:
        raise errors.Failed(
            f"interrupted; process {process.pid} runs it all the same; log: {log}; to follow:"
            f" wbengine flow watch {uuid}",
            errors.INTERRUPTED,
        ) from error
    printer = context.printer
    printer.document("flow-detach/1", {"uuid": uuid, "pid": process.pid, "log": str(log)})
    printer.line(uuid)
    printer.note(
        f"process {process.pid} runs it; log: {log}; to follow: wbengine flow watch {uuid}"
    )
    return errors.OK


def _wait(context: Context, uuid: str, process: subprocess.Popen[bytes], log: Path) -> None:
    """Until the process has the flow, or has ended with it."""
    until = time.monotonic() + _BEGINNING
    with context.backend() as backend, backend.get_connection() as connection:
        before = connection.get_flow_details(uuid, lazy=True).epoch
        while time.monotonic() < until:
            code = process.poll()
            if connection.get_flow_details(uuid, lazy=True).epoch != before:
                return
            if code:
                said = _last_words(log) or f"exit code {code}"
                raise errors.Failed(f"it did not begin: {said} (log: {log})", code)
            time.sleep(_PAUSE)
    raise errors.Failed(f"it did not begin within {_BEGINNING:g} s (log: {log})", errors.TRY_AGAIN)


def _last_words(log: Path) -> str:
    """Why it ended: without the name of the command, which is not the one that was called."""
    *_, last = "", *log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return last.partition(": error: ")[2] or last


def _environment(
    context: Context, operation: str, engine: str | None, factory: str | None
) -> dict[str, str]:
    found = {**os.environ, **context.environment()}
    if factory is not None and not context.settings.flows:
        found["WBENGINE_FLOWS"] = factory
    if engine is not None:
        found[f"WBENGINE_FLOW_{operation.upper()}_ENGINE"] = engine
    return found


def _log_file(uuid: str) -> Path:
    folder = config.state_folder() / "logs"
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise errors.Failed(f"{folder} cannot be made: {errors.reason(error)}") from error
    # Whoever writes a record chooses its uuid.
    return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', uuid)[:64]}.log"
