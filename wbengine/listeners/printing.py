"""A listener that prints events, for small programs."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Iterable
from typing import Any

from wbengine._text.terminal_text import visible
from wbengine.listeners import base

__all__ = ["PrintingListener"]


class PrintingListener(base.DumpingListener):
    """Prints one line for each state change, and the traceback of each failure."""

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        stderr: bool = False,
    ) -> None:
        """Create a listener for `engine`.

        :param stderr: print to standard error instead of standard output.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._file = sys.stderr if stderr else sys.stdout

    def _dump(self, message: str, *args: Any, **kwargs: Any) -> None:
        print(visible(message % args), file=self._file)
        exc_info = kwargs.get("exc_info")
        if exc_info is not None:
            lines = "".join(traceback.format_exception(*exc_info))
            print(visible(lines, lines=True), end="", file=self._file)
