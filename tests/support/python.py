"""Python programs in processes of their own. All tests start them with `start` or `run`.

A program starts from a fork server that has imported the package (`tests/support/fork_server.py`),
which saves the CPU time of a start and of imports. Programs that test a start, imports or options
of the interpreter pass `real=True`: they start as a user starts them.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tests.support.fork_server import END, LENGTH, PID

REPOSITORY = Path(__file__).resolve().parents[2]
#: Path of the socket of the fork server, which the processes of a test share.
VARIABLE = "FORK_SERVER_OF_TESTS"
PIPE, STDOUT, DEVNULL = subprocess.PIPE, subprocess.STDOUT, subprocess.DEVNULL
#: Variables that the interpreter reads at its start, but that a forked process can apply, too.
_APPLIED = {"PYTHONUNBUFFERED", "PYTHONPATH", "PYTHONDONTWRITEBYTECODE", "PYTHONPYCACHEPREFIX"}
_ACTIONS = {"error", "ignore", "default", "always"}
#: Options of `Process`. Programs with other options, such as `preexec_fn`, start a new interpreter.
_OPTIONS = {
    "stdin", "stdout", "stderr", "cwd", "env", "text", "pass_fds", "start_new_session", "terminal",
    "die_with_parent",
}  # fmt: skip


class _Order:
    """What a command line of Python starts."""

    def __init__(self, words: Sequence[str]) -> None:
        words = list(words)
        self.warnings: list[str] = []
        while words[0] == "-W":
            self.warnings.append(words[1])
            del words[:2]
        options = {"-m": "module", "-c": "code"}
        if words[0] in options:
            self.kind, self.what, self.arguments = options[words[0]], words[1], words[2:]
        else:
            self.kind, self.what, self.arguments = "file", words[0], words[1:]
        self.is_plain = set(self.warnings) <= _ACTIONS and not self.what.startswith("-")


def _needs_interpreter(env: Mapping[str, str]) -> bool:
    """Return whether variables differ that only a new interpreter applies."""

    def read(variables: Mapping[str, str]) -> dict[str, str]:
        return {
            name: value
            for name, value in variables.items()
            if name.startswith(("PYTHON", "LC_", "LANG")) and name not in _APPLIED
        }

    return read(env) != read(os.environ)


class Process:
    """A program that the fork server started, with the interface of `subprocess.Popen`."""

    def __init__(
        self,
        words: Sequence[str | os.PathLike[str]],
        *,
        stdin: Any = None,
        stdout: Any = None,
        stderr: Any = None,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        text: bool = False,
        pass_fds: Sequence[int] = (),
        start_new_session: bool = False,
        terminal: bool = False,
        die_with_parent: bool = False,
    ) -> None:
        """Start a program.

        With `terminal`, its standard input is its controlling terminal. With `die_with_parent`, it
        is killed when this process ends in any way.
        """
        self.args = [os.fspath(word) for word in words]
        self.returncode: int | None = None
        self._lock = threading.Lock()
        with contextlib.ExitStack() as opened:
            self.stdin, theirs = _stream(stdin, 0, text, opened)
            self.stdout, output = _stream(stdout, 1, text, opened)
            if stderr == STDOUT:
                self.stderr, errors = None, output
            else:
                self.stderr, errors = _stream(stderr, 2, text, opened)
            descriptors = [theirs, output, errors, *pass_fds]
            order = _Order(self.args)
            content = {
                "kind": order.kind,
                "what": order.what,
                "arguments": order.arguments,
                "warnings": order.warnings,
                "cwd": os.path.abspath(cwd or os.getcwd()),
                "env": dict(os.environ if env is None else env),
                "umask": _umask(),
                "pass": list(pass_fds),
                "session": start_new_session or terminal,
                "terminal": terminal,
                "mortal": die_with_parent,
            }
            self._connection = _connect()
            text_of_order = json.dumps(content).encode("utf-8", "surrogateescape")
            header = LENGTH.pack(len(text_of_order))
            socket.send_fds(self._connection, [header], descriptors)
            self._connection.sendall(text_of_order)
        (self.pid,) = self._receive(PID)

    def _receive(self, content: struct.Struct) -> tuple[Any, ...]:
        received = self._connection.recv(content.size, socket.MSG_WAITALL)
        assert len(received) == content.size, "the fork server has ended"
        return content.unpack(received)

    def poll(self) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._connection], [], [], 0)[0]:
                status, seconds = self._receive(END)
                self.returncode = os.waitstatus_to_exitcode(status)
                self._connection.close()
                usage.seconds += seconds
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        until = None if timeout is None else time.monotonic() + timeout
        while self.poll() is None:
            left = None if until is None else until - time.monotonic()
            if left is not None and left <= 0:
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
            with contextlib.suppress(ValueError, OSError):  # closed by another thread
                select.select([self._connection], [], [], left)
        assert self.returncode is not None
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:
        """Write `input`, read both outputs until they are closed, and wait for the end."""
        until = None if timeout is None else time.monotonic() + timeout
        contents: dict[str, Any] = {}

        def read(name: str, stream: IO[Any]) -> None:
            contents[name] = stream.read()

        readers = [
            threading.Thread(target=read, args=(name, stream), daemon=True)
            for name, stream in (("stdout", self.stdout), ("stderr", self.stderr))
            if stream is not None
        ]
        for reader in readers:
            reader.start()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                if input:
                    self.stdin.write(input)
                self.stdin.close()
        for reader in readers:
            reader.join(None if until is None else max(until - time.monotonic(), 0))
            if reader.is_alive():
                assert timeout is not None
                raise subprocess.TimeoutExpired(self.args, timeout)
        self.wait(None if until is None else max(until - time.monotonic(), 0.01))
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        return contents.get("stdout"), contents.get("stderr")

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for stream in (self.stdout, self.stderr):
            if stream is not None:
                stream.close()
        if self.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                self.stdin.close()
        self.wait()


class Usage:
    """CPU time of the programs that ended. They are no children of the process of the tests."""

    seconds = 0.0


usage = Usage()


def _stream(
    wanted: Any, number: int, text: bool, opened: contextlib.ExitStack
) -> tuple[IO[Any] | None, int]:
    """Return the file of the test, if it wants a pipe, and the descriptor of the program."""
    if wanted is None:
        return None, number
    if wanted == DEVNULL:
        null = os.open(os.devnull, os.O_RDWR)
        opened.callback(os.close, null)
        return None, null
    if wanted != PIPE:
        return None, wanted if isinstance(wanted, int) else wanted.fileno()
    ends = os.pipe()
    ours, theirs = (ends[1], ends[0]) if number == 0 else ends
    opened.callback(os.close, theirs)
    mode = "w" if number == 0 else "r"
    return open(ours, mode if text else f"{mode}b"), theirs


def _umask() -> int:
    # The only public function that reads the umask also sets it.
    mask = os.umask(0o022)
    os.umask(mask)
    return mask


_starting = threading.Lock()


def _connect() -> socket.socket:
    """Return a connection to the fork server, which starts if there is none."""
    with _starting:
        path = os.environ.get(VARIABLE) or _start_server()
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(path)
    return connection


def _start_server() -> str:
    """Start the fork server of this process and its children, and return its path."""
    folder = tempfile.mkdtemp(prefix="wbengine-fork-")
    path = os.path.join(folder, "socket")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.fork_server", path],
        stdin=subprocess.PIPE,
        cwd=REPOSITORY,
    )
    pid = os.getpid()

    def end() -> None:
        if os.getpid() == pid:  # not in a fork of the test process
            assert server.stdin is not None
            server.stdin.close()
            server.wait()
            shutil.rmtree(folder, ignore_errors=True)

    atexit.register(end)
    while not os.path.exists(path):
        assert server.poll() is None, "the fork server could not start"
        time.sleep(0.01)
    os.environ[VARIABLE] = path
    return path


def start(
    words: Sequence[object], *, real: bool = False, **options: Any
) -> Process | subprocess.Popen[Any]:
    """Start a Python program: `start(["-m", "wbengine", "status"], stdout=PIPE, text=True)`.

    `words` are the arguments of the interpreter, and `options` those of `subprocess.Popen`.
    """
    arguments = [os.fspath(word) if isinstance(word, os.PathLike) else str(word) for word in words]
    env = options.get("env")
    real = real or not options.keys() <= _OPTIONS or not _Order(arguments).is_plain
    if real or (env is not None and _needs_interpreter(env)):
        return subprocess.Popen([sys.executable, *arguments], **options)
    return Process(arguments, **options)


def run(
    words: Sequence[object],
    *,
    input: Any = None,
    timeout: float | None = None,
    check: bool = False,
    capture_output: bool = False,
    **options: Any,
) -> subprocess.CompletedProcess[Any]:
    """Run a Python program, with the interface of `subprocess.run`."""
    if capture_output:
        options |= {"stdout": PIPE, "stderr": PIPE}
    if input is not None:
        options["stdin"] = PIPE
    with start(words, **options) as process:
        try:
            out, err = process.communicate(input, timeout)
        except BaseException:
            process.kill()
            raise
    assert process.returncode is not None
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


@contextlib.contextmanager
def running(words: Sequence[object], **options: Any) -> Iterator[Process | subprocess.Popen[Any]]:
    """Start a program, and kill it at the end of the block if it still runs."""
    with start(words, **options) as process:
        try:
            yield process
        finally:
            process.kill()
