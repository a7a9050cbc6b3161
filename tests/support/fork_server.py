"""A process that has imported the package, and forks a process for each Python program of a test.

    python -m tests.support.fork_server SOCKET

It ends when its standard input is closed. `tests/support/python.py` starts it and sends orders:
each connection contains the order of one program, and receives its process id, and its wait status
when it has ended.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import fcntl
import gc
import importlib
import importlib.util
import json
import os
import select
import signal
import socket
import struct
import sys
import termios
import threading
import traceback
import types
import warnings
from collections.abc import Callable
from typing import Any

#: Imported before the first order: what most programs of the tests import.
PRELOADED = (
    "django.core.management",
    "django.db.models",
    "fastjsonschema",
    "jsonschema",
    "kombu.connection",
    "psycopg",
    "pymysql",
    "redis",
    "rich.live",
    "rich.progress_bar",
    "rich.table",
    "rich.tree",
    "sqlalchemy.dialects.mysql.pymysql",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "tests.support.waiting",
    "wbengine._cli.app",
    "wbengine._cli.flow_run",
    "wbengine._cli.flow_show",
    "wbengine._cli.serve_command",
    "wbengine._cli.worker_command",
    "wbengine._runtime.executors.serial",
    "wbengine._runtime.workflows.manager",
    "wbengine.conductors.backends.impl_executor",
    "wbengine.drawing",
    "wbengine.drawing._terminal_tree",
    "wbengine.engines._loading",
    "wbengine.engines._local",
    "wbengine.engines.worker_based.engine",
    "wbengine.engines.worker_based.worker",
    "wbengine.fleet.client",
    "wbengine.jobs.backends.impl_sql",
    "wbengine.listeners.progress",
    "wbengine.operations",
    "wbengine.operations._finding",
    "wbengine.operations._resuming",
    "wbengine.patterns.graph_flow",
    "wbengine.patterns.linear_flow",
    "wbengine.patterns.unordered_flow",
    "wbengine.persistence.backends._directory",
    "wbengine.steps",
    "wbengine.telemetry._programs",
    "wbengine.transports._amqp.amqp_kind",
    "wbengine.transports._folder.folder_broker",
    "wbengine.transports._folder.folder_kind",
    "wbengine.transports._redis.redis_kind",
    "wbengine.views.flow_status",
)
MAX_DESCRIPTORS = 250
#: Descriptors of a program are moved here while those of the server are closed.
FIRST_MOVED = 1000

LENGTH = struct.Struct("!I")
PID = struct.Struct("!i")
#: Wait status, and CPU time in seconds.
END = struct.Struct("!id")


def receive_order(connection: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Return an order and its descriptors. The first three are the standard streams."""
    header, descriptors, _, _ = socket.recv_fds(connection, LENGTH.size, MAX_DESCRIPTORS)
    (length,) = LENGTH.unpack(header)
    text = b""
    while len(text) < length:
        chunk = connection.recv(length - len(text))
        if not chunk:
            raise EOFError("order is incomplete")
        text += chunk
    return json.loads(text), descriptors


class Server:
    """Accepts orders, forks programs and reports their ends."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._poll = select.poll()
        self._poll.register(listener, select.POLLIN)
        self._poll.register(0, select.POLLIN)
        self._running: dict[int, tuple[int, socket.socket]] = {}  # by pidfd
        self._mortal: dict[int, int] = {}  # process ids by descriptor of their connection

    def serve(self) -> Callable[[], None] | None:
        """Return the program of a forked process, or None when the server has to end."""
        while True:
            for descriptor, _ in self._poll.poll():
                if descriptor == 0:
                    for pid in self._mortal.values():
                        os.kill(pid, signal.SIGKILL)
                    return None
                if descriptor == self._listener.fileno():
                    program = self._accept()
                    if program is not None:
                        return program
                elif descriptor in self._running:
                    self._report(descriptor)
                elif descriptor in self._mortal:  # the parent has ended
                    self._poll.unregister(descriptor)
                    os.kill(self._mortal.pop(descriptor), signal.SIGKILL)

    def _accept(self) -> Callable[[], None] | None:
        connection, _ = self._listener.accept()
        try:
            order, descriptors = receive_order(connection)
        except (EOFError, struct.error):  # the test process was killed
            connection.close()
            return None
        assert threading.active_count() == 1, "a fork copies only one thread"
        pid = os.fork()
        if pid == 0:
            return _Program(order, descriptors).run
        for each in descriptors:
            os.close(each)
        pidfd = os.pidfd_open(pid)
        self._running[pidfd] = pid, connection
        self._poll.register(pidfd, select.POLLIN)
        if order["mortal"]:
            self._mortal[connection.fileno()] = pid
            self._poll.register(connection, select.POLLIN)
        with contextlib.suppress(OSError):  # the test process may be dead
            connection.sendall(PID.pack(pid))
        return None

    def _report(self, pidfd: int) -> None:
        pid, connection = self._running.pop(pidfd)
        self._poll.unregister(pidfd)
        os.close(pidfd)
        if self._mortal.pop(connection.fileno(), None) is not None:
            self._poll.unregister(connection)
        _, status, usage = os.wait4(pid, 0)
        with contextlib.suppress(OSError), connection:
            connection.sendall(END.pack(status, usage.ru_utime + usage.ru_stime))


class _Program:
    """A Python program in a forked process: a module, a file or code, with its arguments."""

    def __init__(self, order: dict[str, Any], descriptors: list[int]) -> None:
        self._order = order
        self._descriptors = descriptors

    def run(self) -> None:
        order = self._order
        self._connect()
        if order["session"]:
            os.setsid()
        if order["terminal"]:
            fcntl.ioctl(0, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        os.chdir(order["cwd"])
        os.umask(order["umask"])
        os.environ.clear()
        os.environ.update(order["env"])
        self._open_streams()
        for action in order["warnings"]:
            warnings.simplefilter(action)
            sys.warnoptions.append(action)
        try:
            self._execute()
            _exit_codes.append(0)
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                _exit_codes.append(end.code or 0)
            raise
        except Exception as error:
            # This line and `_execute` are not part of the program.
            frames = error.__traceback__ and error.__traceback__.tb_next
            while frames is not None and frames.tb_frame.f_code.co_filename == __file__:
                frames = frames.tb_next
            sys.stdout.flush()
            traceback.print_exception(type(error), error, frames)
            _exit_codes.append(1)
            sys.exit(1)

    def _connect(self) -> None:
        """Give the descriptors their numbers, and close all others."""
        moved = [
            (number, fcntl.fcntl(each, fcntl.F_DUPFD, FIRST_MOVED))
            for number, each in zip([0, 1, 2, *self._order["pass"]], self._descriptors, strict=True)
        ]
        os.closerange(0, FIRST_MOVED)
        for number, each in moved:
            os.dup2(each, number)
            os.close(each)

    def _open_streams(self) -> None:
        unbuffered = bool(os.environ.get("PYTHONUNBUFFERED"))
        for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
            errors = "backslashreplace" if name == "stderr" else None
            buffering = 1 if name == "stderr" else -1  # files; a terminal is buffered by line
            stream = open(number, mode, buffering, errors=errors, closefd=False)  # noqa: SIM115
            if mode == "w" and unbuffered:
                stream.reconfigure(write_through=True)
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)

    def _execute(self) -> None:
        kind, what = self._order["kind"], self._order["what"]
        main = types.ModuleType("__main__")
        main.__dict__["__builtins__"] = builtins
        sys.modules["__main__"] = main
        sys.argv = ["-c" if kind == "code" else what, *self._order["arguments"]]
        folder = {
            "module": os.getcwd(),
            "code": "",
            "file": os.path.dirname(os.path.realpath(what)),
        }[kind]
        sys.path[0:1] = [folder, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        importlib.invalidate_caches()
        if kind == "code":
            exec(compile(what, "<string>", "exec"), main.__dict__)
            return
        if kind == "file":
            main.__file__ = what
            with open(what, "rb") as file:
                exec(compile(file.read(), what, "exec"), main.__dict__)
            return
        spec = importlib.util.find_spec(what)
        if spec is not None and spec.submodule_search_locations is not None:
            spec = importlib.util.find_spec(f"{what}.__main__")
        if spec is None or spec.loader is None or spec.origin is None:
            raise ModuleNotFoundError(f"No module named {what}", name=what)
        main.__spec__, main.__loader__, main.__file__ = spec, spec.loader, spec.origin
        main.__package__ = spec.parent
        sys.argv[0] = spec.origin
        loader: Any = spec.loader
        exec(loader.get_code(spec.name), main.__dict__)


#: Exit code of the program of this process, after its end. Others end as the interpreter does.
_exit_codes: list[int] = []


def _leave() -> None:
    """End a program without deleting all modules, which takes 50 ms of CPU time."""
    if _exit_codes:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # reported by Python
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(_exit_codes[0])


def main(path: str) -> None:
    atexit.register(_leave)  # before all others, so it is called as the last one
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # of the whole process group
    for module in PRELOADED:
        importlib.import_module(module)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{path}.new")
        listener.listen(100)
        os.rename(f"{path}.new", path)  # a client that finds the path can connect
        gc.collect()
        gc.freeze()
        program = Server(listener).serve()
    if program is not None:
        program()


if __name__ == "__main__":
    main(sys.argv[1])
