"""The keeper of one private server: a process that starts it, and ends it for certain.

    python -m tests.support.server_keeper PID KIND PROGRAM [SETTING=VALUE ...]

It tells in one line of JSON where the server is, or why there is none.  It ends the server, and
removes its folder, at SIGTERM, and when the process PID is gone, however that ended.  When PID is
its parent, it also listens: words on its standard input are done and answered, by a line each:
`kill` (kill -9), `start` (again, on the same port and data), `pause` and `resume` (SIGSTOP and
SIGCONT), and of RabbitMQ `alarm` and `calm` (it is short of memory, or is not); the end of that
input ends the server as well.  Else it is in the background at once.
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
    """Do what is asked for, until there is no more need for the server, or no server."""
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
            told = keeper.do(word.decode())
            killed = keeper.server.poll() is not None
            print(json.dumps(told), flush=True)


def _leave(number: int, frame: object) -> NoReturn:
    sys.exit(0)


def main(pid: str, kind: str, program: str, *settings: str) -> None:
    user = os.pidfd_open(int(pid))
    listens = int(pid) == os.getppid()
    if not listens and os.fork():  # it outlives its parent, which waits for no child
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
