"""What a pool's child process runs, and how calls and results are pickled on both sides.

The pipe carries byte messages, each one tag byte followed by a pickle.  To the child: `CALL` with
`(fn, args)`.  From the child: `READY` once (None, or the `Failure` of the initializer), then for
each call any number of `EVENT`s and exactly one `RESULT`.
"""

from __future__ import annotations

import io
import os
import pickle
import select
import signal
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing import connection as mp_connection
from typing import TYPE_CHECKING, Any, Final

from wbengine import _names, exceptions, loops
from wbengine.types import failure as ft

if TYPE_CHECKING:
    Pipe = mp_connection.Connection[Any, Any]

CALL: Final = b"c"
READY: Final = b"+"
EVENT: Final = b"e"
RESULT: Final = b"="

#: How long a child whose parent is gone may take to end by itself, in seconds.
_GRACE: Final = 5.0
#: Exit code of a child that stopped in the middle of a call because its parent was gone.
_ORPHANED: Final = 75
_DEPTH: Final = 64


def encode(tag: bytes, value: Any, where: str) -> memoryview:
    """Pickle `value` behind `tag`.

    :raises NotEncodable: it cannot be; the text has the path of the culprit.
    """
    buffer = io.BytesIO()
    buffer.write(tag)
    try:
        pickle.dump(value, buffer, pickle.HIGHEST_PROTOCOL)
    except Exception as error:
        raise _not_encodable(value, where, error) from error
    return buffer.getbuffer()


def encode_call(fn: Callable[..., Any], args: tuple[Any, ...]) -> memoryview:
    """The message for one call.

    :raises NotEncodable: it cannot be pickled.
    """
    try:
        return encode(CALL, (fn, args), "call")
    except exceptions.NotEncodable as error:
        for where, part in (("fn", fn), ("arguments", args)):
            if isinstance(error.__cause__, Exception) and not _pickles(part):
                raise _not_encodable(part, where, error.__cause__) from error.__cause__
        raise


def decode(data: bytes, what: str) -> Any:
    """The value behind the tag byte of `data`.

    :raises NotEncodable: it cannot be rebuilt.
    """
    try:
        return pickle.loads(memoryview(data)[1:])
    except BaseException as error:
        raise exceptions.NotEncodable(
            f"{what} cannot be rebuilt from its pickle: {type(error).__name__}: {error}",
            path=what,
        ) from error


def _not_encodable(value: Any, where: str, error: Exception) -> exceptions.NotEncodable:
    path, culprit = _culprit(value, where)
    type_name = _names.dotted(type(culprit))
    return exceptions.NotEncodable(
        f"{path}: {type_name} cannot be pickled ({type(error).__name__}: {error})",
        path=path,
        type_name=type_name,
    )


def _culprit(value: Any, where: str) -> tuple[str, Any]:
    """The innermost part of `value` that cannot be pickled, and its path."""
    for _ in range(_DEPTH):
        for label, part in _parts(value):
            if not _pickles(part):
                where, value = where + label, part
                break
        else:
            break
    return where, value


def _parts(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, part in value.items():
            yield f"<key {type(key).__name__}>", key
            yield f"[{key!r}]", part
    elif isinstance(value, (list, tuple)):
        for index, part in enumerate(value):
            yield f"[{index}]", part
    elif isinstance(value, (set, frozenset)):
        for part in value:
            yield "{...}", part
    elif not isinstance(value, type):
        for name, part in getattr(value, "__dict__", {}).items():
            yield f".{name}", part
        for kind in type(value).__mro__:
            slots = kind.__dict__.get("__slots__", ())
            for name in (slots,) if isinstance(slots, str) else slots:
                if hasattr(value, name) and name not in ("__dict__", "__weakref__"):
                    yield f".{name}", getattr(value, name)


def _pickles(value: Any) -> bool:
    try:
        pickle.dumps(value, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return False
    return True


class _Emitter:
    """The `emit` of one call: sends events in the order told, from any thread, until the result."""

    __slots__ = ("_lock", "_pipe")

    def __init__(self, pipe: Pipe) -> None:
        self._pipe: Pipe | None = pipe
        self._lock = threading.Lock()

    def __call__(self, event_type: str, details: dict[str, Any]) -> None:
        """Send an event; late ones are dropped.

        :raises NotEncodable: `details` cannot be pickled.
        """
        data = encode(EVENT, (event_type, details), "event")
        with self._lock:
            if self._pipe is not None:
                _send(self._pipe, data)

    def close(self) -> None:
        with self._lock:
            self._pipe = None


def _send(pipe: Pipe, data: memoryview) -> None:
    try:
        pipe.send_bytes(data)
    except OSError:
        # The parent is gone: the watching thread ends this process.
        pass


def main(
    pipe: Pipe,
    environment: dict[str, str],
    initializer: Callable[..., object] | None,
    initargs: tuple[Any, ...],
) -> None:
    """Serve calls from `pipe`, one at a time, in the main thread, until it closes."""
    # A handler rather than SIG_IGN: programs that a call starts must not inherit "ignored".
    signal.signal(signal.SIGINT, lambda *_: None)
    if os.environ != environment:
        os.environ.clear()
        os.environ.update(environment)
    busy = threading.Event()
    threading.Thread(
        target=_end_with_parent, args=(pipe.fileno(), busy), name="parent-watch", daemon=True
    ).start()
    pid = os.getpid()
    problem: ft.Failure | None = None
    try:
        if initializer is not None:
            initializer(*initargs)
    except BaseException as error:
        problem = ft.Failure.from_exception(error)
    _send(pipe, _encode_outcome(READY, problem))
    while problem is None:
        try:
            data = pipe.recv_bytes()
        except (EOFError, OSError):
            loops.stop_all()
            return
        busy.set()
        outcome = _serve(pipe, data)
        if os.getpid() != pid:  # a fork that the call made, and that came out of it as well
            os._exit(0)
        # Before the result goes out: once the parent has it, it may close the pipe at any time.
        busy.clear()
        _send(pipe, outcome)
        del data, outcome


def _serve(pipe: Pipe, data: bytes) -> memoryview:
    emit = _Emitter(pipe)
    value: Any
    try:
        fn, args = decode(data, "call")
        del data
        value = fn(*args, emit)
    except BaseException as error:
        value = ft.Failure.from_exception(error)
    emit.close()
    return _encode_outcome(RESULT, value)


def _encode_outcome(tag: bytes, value: Any) -> memoryview:
    try:
        return encode(tag, value, "result")
    except exceptions.NotEncodable as error:
        return encode(tag, ft.Failure.from_exception(error), "result")


def _end_with_parent(fd: int, busy: threading.Event) -> None:
    """End this process when the other end of the pipe is closed, even in the middle of a call."""
    poller = select.poll()
    poller.register(fd, 0)  # no events asked for: only hang-up and errors wake it
    poller.poll()
    if not busy.is_set():
        # The main thread sees the same end of file; it only needs help when the exit handlers
        # or threads that a call left behind keep the process alive.
        threading.Event().wait(_GRACE)
    os._exit(_ORPHANED)
