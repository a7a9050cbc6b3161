"""A store in memory, whose writes are moments at which faults can occur."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from wbengine.persistence import base

__all__ = ["CrashingStore"]

#: Methods of connections that save what a flow did.
_WRITES: Final = ("save_changes", "save_outline", "release_lease")

#: Other methods that would change the store after the death of the process.
_OTHERS: Final = ("acquire_lease", "end_lease", "put_command", "put_signal", "save_logbook")


class CrashingStore(base.Backend):
    """Calls another store. `before_write(method)` is called before each write.

    It can raise an exception instead of the write, or return one that is raised after the write.
    """

    write_pause = 0.0
    encodes = False

    def __init__(
        self,
        inner: base.Backend,
        before_write: Callable[[str], BaseException | None],
        check_alive: Callable[[], None],
    ) -> None:
        super().__init__(inner.conf)
        self._inner = inner
        self._before_write = before_write
        self._check_alive = check_alive

    def get_connection(self) -> base.Connection:
        connection = self._inner.get_connection()
        for method in _WRITES:
            setattr(connection, method, self._writing(method, getattr(connection, method)))
        for method in _OTHERS:
            setattr(connection, method, self._living(getattr(connection, method)))
        return connection

    def _writing(self, method: str, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            error = self._before_write(method)
            result = write(*args, **options)
            if error is not None:
                raise error
            return result

        return call

    def _living(self, write: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            self._check_alive()
            return write(*args, **options)

        return call

    def close(self) -> None:
        """Do nothing: the store outlives its processes."""
