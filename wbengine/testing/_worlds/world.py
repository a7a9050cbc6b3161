"""Simulated systems outside of wbengine, which record what flows do to them."""

from __future__ import annotations

import contextlib
import sys
import threading
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from wbengine.testing._worlds.contents import Contents, Effect
from wbengine.testing._worlds.sharing import SharedLock

__all__ = [
    "DO",
    "UNDO",
    "Operation",
    "Recorder",
    "Unavailable",
    "World",
    "without_recorder",
]

_PACKAGE: Final = f"{Path(__file__).resolve().parents[2]}/"

#: Kinds of operations.
DO: Final = "effect"
UNDO: Final = "undo"


_Result = Literal["done", "duplicate", "undone_before", "missing"]

#: Worlds without a recorder that were used while other worlds had one; None: no world has one.
_unknown: set[World] | None = None


class Unavailable(ConnectionError):
    """The system is overloaded, and has done nothing."""


@dataclass(frozen=True, eq=False)
class Operation:
    """A call that changed a world, or tried to.

    :ivar kind: `DO` or `UNDO`.
    :ivar result: "done"; "duplicate" if the idempotency key was known; "undone_before" if it was
        known, but its effect was undone; "missing" if there was nothing to undo.
    :ivar line: file and line of the caller.
    """

    world: World
    kind: Literal["effect", "undo"]
    key: str
    result: _Result
    line: str
    #: Whether the world accepts what the operation found missing.
    is_accepted: bool = False
    #: Keys of effects that do not exist any more because of this one.
    replaced: tuple[str, ...] = ()


class Recorder(Protocol):
    """Observes the operations of worlds during a run, and can inject faults into them."""

    def before(self, world: World, kind: str, key: str, line: str) -> None:
        """Observe the begin of an operation. An exception replaces it."""

    def after(self, operation: Operation) -> None:
        """Observe an operation. An exception replaces its result."""


class World:
    """A system outside of wbengine: a bank, a mail server, a cloud. Thread-safe.

    Tasks of a test use it in place of the real system. `crash_everywhere` checks what remains in
    it. In other tests, it only records.

    :param name: its name in reports.
    :param permanent: whether its effects cannot be undone, as those of a letter.
    :param repeatable: whether the same effect may be done again, as the write of a file.
    """

    #: Packages between the code under test and this world, whose lines reports do not show.
    _clients: tuple[str, ...] = ()

    #: Whether it can answer that it is overloaded (`Unavailable`).
    can_be_busy = False

    def __init__(self, name: str, *, permanent: bool = False, repeatable: bool = False) -> None:
        if not isinstance(name, str) or not name:
            raise TypeError(f"The name of a world must be a non-empty str, got {name!r:.80}")
        #: Its name in reports.
        self.name: Final = name
        #: Whether its effects cannot be undone.
        self.permanent: Final = permanent
        #: Whether the same effect may be done again.
        self.repeatable: Final = repeatable
        self._lock: contextlib.AbstractContextManager[Any] = threading.RLock()
        self._contents = Contents()
        self._recorder: Recorder | None = None

    def effect(self, key: str, *, idempotency_key: str | None = None, **data: Any) -> str:
        """Do something outside, and return its identity there.

        A second call with the same key does it twice, except with the same `idempotency_key`: then
        it does nothing, and returns the identity of the first effect. In a repeatable world, all
        calls with the same key are one effect.

        :param key: what is done, for example f"charge {order}".
        :param data: what `data` returns later.
        """
        line = self._begin(DO, key)
        result: _Result = "done"
        with self._lock:
            contents = self._contents
            known = None
            if self.repeatable and key in contents.active:
                known = contents.active[key][-1]
            elif idempotency_key is not None:
                known = contents.by_idempotency_key.get(idempotency_key)
            if known is None:
                contents.number += 1
                effect = Effect(key, f"{self.name}-{contents.number}", data)
                contents.active.setdefault(key, []).append(effect)
                if idempotency_key is not None:
                    contents.by_idempotency_key[idempotency_key] = effect
            else:
                effect = known
                exists = any(each is known for each in contents.active.get(known.key, ()))
                result = "duplicate" if exists else "undone_before"
        self._end(DO, key, result, line)
        return effect.id

    def undo(self, key: str, *, missing_ok: bool = False) -> None:
        """Undo an effect outside. Without such an effect, this does nothing, and is a fault.

        :param missing_ok: whether it is not a fault, as the deletion of something that is missing.
        """
        line = self._begin(UNDO, key)
        with self._lock:
            effects = self._contents.active.get(key)
            if effects:
                effects.pop()
                if not effects:
                    del self._contents.active[key]
        self._end(UNDO, key, "done" if effects is not None else "missing", line, missing_ok)

    def has(self, key: str) -> bool:
        """Return whether the effect exists."""
        with self._lock:
            return key in self._contents.active

    def data(self, key: str) -> Mapping[str, Any]:
        """Return the data of the latest effect with this key.

        :raises KeyError: if there is none.
        """
        with self._lock:
            return self._contents.active[key][-1].data

    @property
    def keys(self) -> list[str]:
        """The keys of all effects that exist, one for each effect."""
        with self._lock:
            return [key for key, effects in self._contents.active.items() for _ in effects]

    def clear(self) -> None:
        """Forget all effects."""
        with self._lock:
            self._contents = Contents()

    @contextmanager
    def recorded_by(self, recorder: Recorder) -> Iterator[None]:
        """Begin empty, and report all operations to a recorder. Then restore the contents."""
        contents, self._contents = self._contents, Contents()
        previous, self._recorder = self._recorder, recorder
        try:
            yield
        finally:
            self._contents, self._recorder = contents, previous

    @contextmanager
    def shared(self, path: Path, recorder: Recorder) -> Iterator[None]:
        """Like `recorded_by`, for this process and the ones that it forks.

        :param path: file of the contents.
        """
        with self.recorded_by(recorder):
            lock, self._lock = self._lock, SharedLock(path, self._contents)
            try:
                self._open()
                yield
            finally:
                self._lock = lock

    def _open(self) -> None:
        """Create what processes share, before they are forked."""

    def _begin(self, kind: str, key: str) -> str:
        if not isinstance(key, str):
            raise TypeError(f"The key of an effect must be a str, got {key!r:.80}")
        if self._recorder is None:
            if _unknown is not None:
                _unknown.add(self)
            return ""
        line = calling_line(self._clients)
        self._recorder.before(self, kind, key, line)
        return line

    def _end(
        self,
        kind: Literal["effect", "undo"],
        key: str,
        result: _Result,
        line: str,
        is_accepted: bool = False,
        replaced: tuple[str, ...] = (),
    ) -> None:
        if self._recorder is not None:
            self._recorder.after(Operation(self, kind, key, result, line, is_accepted, replaced))

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


@contextmanager
def without_recorder() -> Iterator[set[World]]:
    """Yield the worlds without a recorder that are used until the end of the block."""
    global _unknown
    _unknown = found = set[World]()
    try:
        yield found
    finally:
        _unknown = None


def calling_line(clients: Collection[str] = ()) -> str:
    """Return file and line of the innermost caller outside of wbengine and some packages."""
    frame = sys._getframe(1)
    while frame.f_back is not None and (
        frame.f_code.co_filename.startswith(_PACKAGE)
        or frame.f_globals.get("__name__", "").partition(".")[0] in clients
    ):
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
