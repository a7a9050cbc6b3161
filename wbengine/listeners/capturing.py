"""A listener that collects events in a list, for tests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

from wbengine.listeners import base

__all__ = ["CaptureListener"]


class CaptureListener(base.Listener):
    """Appends `(kind, state, details)` to `values`, in the order of the events."""

    FLOW: ClassVar[str] = "flow"
    TASK: ClassVar[str] = "task"
    RETRY: ClassVar[str] = "retry"

    def __init__(
        self,
        engine: Any,
        task_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        flow_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        retry_listen_for: Iterable[str] | None = base.DEFAULT_LISTEN_FOR,
        capture_flow: bool = True,
        capture_task: bool = True,
        capture_retry: bool = True,
        skip_tasks: Iterable[str] | None = None,
        skip_retries: Iterable[str] | None = None,
        skip_flows: Iterable[str] | None = None,
        values: list[Any] | None = None,
    ) -> None:
        """Create a listener for `engine`.

        :param capture_flow: whether to collect events of the flow. The next two are similar.
        :param skip_tasks: names of tasks to ignore. The next two are similar.
        :param values: the list to append to; default: a new list.
        """
        super().__init__(engine, task_listen_for, flow_listen_for, retry_listen_for)
        self._capture = {
            self.FLOW: capture_flow,
            self.TASK: capture_task,
            self.RETRY: capture_retry,
        }
        self._skip = {
            self.FLOW: frozenset(skip_flows or ()),
            self.TASK: frozenset(skip_tasks or ()),
            self.RETRY: frozenset(skip_retries or ()),
        }
        #: Captured events.
        self.values: list[Any] = [] if values is None else values

    @staticmethod
    def _format_capture(kind: str, state: str, details: base.Details) -> Any:
        return kind, state, details

    def _receive(self, kind: str, state: str, details: base.Details) -> None:
        if self._capture[kind] and details[f"{kind}_name"] not in self._skip[kind]:
            self.values.append(self._format_capture(kind, state, details))
