"""The keeper of one private server: a process that starts the server and always ends it.

    python -m tests.support.server_keeper PID KIND PROGRAM [SETTING=VALUE ...]

The keeper prints one line of JSON with the address of the server, or with the reason why there is
none. At SIGTERM, and when the process PID ends in any way, it ends the server and deletes its
folder. If PID is its parent, the keeper executes commands from its standard input, and answers each
with one line: `kill` (kill -9), `start` (again, on the same port and data), `pause` and `resume`
(SIGSTOP and SIGCONT), and for RabbitMQ `alarm` and `calm` (set and clear the memory alarm). The end
of that input ends the server, too. Otherwise the keeper continues in the background.

Standard library only.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NoReturn

from tests.support.server_kinds import KINDS, Keeper, NoServer


def _attend(user: int, listens: bool, keeper: Keeper) -> None:
    """Execute commands until the user process or the server ends."""
    asked = b""
    killed = False
    while True:
        assert keeper.server is not None
        poll = select.poll()
        if listens:
            poll.register(0, select.POLLIN)
        poll.register(user, select.POLLIN)
        watched = -1 if killed else os.pidfd_open(keeper.server.pid)
        if watched >= 0:
            poll.register(watched, select.POLLIN)
        happened = {number for number, _ in poll.poll()}
        if watched >= 0:
            os.close(watched)
        read = os.read(0, 1000) if 0 in happened else b""
        if happened - {0} or not read:
            return
        *words, asked = (asked + read).split(b"\n")
        for word in words:
            reply = keeper.do(word.decode())
            killed = keeper.server.poll() is not None
            print(json.dumps(reply), flush=True)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def main(pid: str, kind: str, program: str, *settings: str) -> None:
    user = os.pidfd_open(int(pid))
    listens = int(pid) == os.getppid()
    if not listens and os.fork():  # outlive the parent, which does not wait for children
        os._exit(0)
    os.chdir("/")
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        signal.signal(number, _leave)
    folder = Path(tempfile.mkdtemp(prefix=f"wbengine-{kind}-"))
    keeper = KINDS[kind](program, folder, dict(text.split("=", 1) for text in settings))
    try:
        print(json.dumps(keeper.start()), flush=True)
        _attend(user, listens, keeper)
    except (NoServer, OSError, subprocess.SubprocessError) as error:
        print(json.dumps({"error": str(error)}), flush=True)
    finally:
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        keeper.stop()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
