"""Calls in a forked child of the test."""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Callable

_WAIT_SECONDS = 30.0


def answer_of_fork(call: Callable[[], object]) -> str:
    """Return the result of a call in a fork, or the type and the text of its exception.

    :raises TimeoutError: if the call does not end.
    """
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            answer = str(call())
        except BaseException as error:
            answer = f"{type(error).__name__}: {error}"
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    try:
        if not select.select([reader], [], [], _WAIT_SECONDS)[0]:
            raise TimeoutError("the call in the fork does not end")
        return os.read(reader, 65536).decode()
    finally:
        os.close(reader)
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
