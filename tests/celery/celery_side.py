"""A process that imports Celery and forks clients, workers and commands (`python -m` this module).

Each input line is an order; the output line contains the process id.
"""

from __future__ import annotations

import ctypes
import json
import logging
import multiprocessing.connection
import os
import signal
import sys
from typing import Any

os.environ["WBENGINE_TEST_SIDE"] = "celery"

import celery.apps.worker
import celery.bin.celery
import celery.concurrency.prefork
import kombu.transport.pyamqp
import kombu.transport.redis

from tests.celery import clients

#: PR_SET_PDEATHSIG of Linux.
_DIES_WITH_PARENT = 1

#: Modules that forked processes need not import again.
READY = (celery.apps, celery.bin.celery, celery.concurrency.prefork, kombu.transport)


def work(order: dict[str, Any]) -> None:
    """Run a worker until it is stopped."""
    app = clients.app_of(order["conf"])
    app.worker_main(["worker", *order["arguments"]])


def command(order: dict[str, Any]) -> None:
    """Run a command such as `celery inspect ping`."""
    app = clients.app_of(order["conf"])
    sys.argv = ["celery", *order["arguments"]]
    sys.exit(app.start(argv=order["arguments"]))


def serve(order: dict[str, Any]) -> None:
    """Run a client: execute calls until the connection is closed."""
    with multiprocessing.connection.Client(order["socket"]) as asked:
        while True:
            try:
                name, conf, args, kwargs = asked.recv()
            except EOFError:
                return
            try:
                told = "value", getattr(clients, name)(clients.app_of(conf), *args, **kwargs)
            except Exception as error:
                logging.exception("%s", name)
                told = "error", clients.told(error)
            asked.send(told)


DEEDS = {"work": work, "command": command, "serve": serve}


def become(order: dict[str, Any]) -> int:
    os.setsid()  # a separate process group, which can be killed as a whole
    ctypes.CDLL(None).prctl(_DIES_WITH_PARENT, signal.SIGKILL)  # even if the tests are killed
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    try:
        DEEDS[order["do"]](order)
    except SystemExit as ended:
        return ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        logging.exception("it ended")
        return 70
    return 0


def main() -> None:
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        code = 70
        try:
            code = become(order)
            sys.stdout.flush()
            sys.stderr.flush()
            with open(order["log"] + ".code", "w", encoding="utf-8") as file:
                file.write(str(code))
        finally:
            os._exit(code)


if __name__ == "__main__":
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forked processes need no wait
    main()
