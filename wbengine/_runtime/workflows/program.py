"""The call of a workflow's function, plain or `async`."""

from __future__ import annotations

import abc
import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, NoReturn

from wbengine import exceptions
from wbengine._concurrency import forks
from wbengine._introspection import object_names
from wbengine._runtime import task_retries
from wbengine._runtime.workflows import step_tasks
from wbengine._runtime.workflows.continuations import Continuation
from wbengine._runtime.workflows.history import History
from wbengine._tasks import commands, sleep_and_wait_for
from wbengine._tasks.commands import Command
from wbengine._tasks.sleep_and_wait_for import WaitingTask
from wbengine._tasks.workflow_scopes import OpenScopes
from wbengine.types import codec
from wbengine.types import failure as ft

__all__ = ["Completion", "Handle", "Program"]

#: Immutable types whose values are the same after they are stored.
_SIMPLE: Final = frozenset({type(None), bool, int, str})


class Completion(NamedTuple):
    """The end of a step: its result or `Failure`, and the time in Unix seconds.

    :ivar signal: stored name of the signal that the step received.
    :ivar discarded: stored names of the signals that it discarded.
    :ivar is_copy: whether the value was just decoded.
    """

    value: Any
    at: float
    signal: str | None
    discarded: Sequence[str] = ()
    is_copy: bool = False


class Handle:
    """A step that the function called.

    :ivar after: number of completions that the function had received.
    :ivar error: the exception that `result` raised, or None.
    """

    __slots__ = (
        "_failure", "_value", "after", "command", "error", "future", "has_failed", "is_done",
        "position",
    )  # fmt: skip

    #: The result, for `async` functions.
    future: Any

    def __init__(self, position: int, command: Command, after: int) -> None:
        self.position: Final = position
        self.command: Final = command
        self.after: Final = after
        self.is_done = self.has_failed = False
        self.error: BaseException | None = None
        self._value: Any = None
        self._failure: ft.Failure | None = None

    def put(self, value: Any, *, is_copy: bool = False) -> None:
        """Set the result: a value, or the failure of the step.

        :param is_copy: whether the value was just decoded.
        """
        self._failure = value if isinstance(value, ft.Failure) else None
        self._value = value if is_copy and self._failure is None else _stored_form(value)
        self.is_done, self.has_failed = True, self._failure is not None

    def result(self) -> Any:
        if self._failure is None:
            return self._value
        try:
            self._value.reraise()
        except Exception as error:
            self.error = error
            raise

    def failure_of(self, error: BaseException | None) -> ft.Failure | None:
        """Return the failure of the step if `error` is the exception that reported it."""
        return self._failure if error is not None and error is self.error else None


class Program(abc.ABC):
    """A call of the function of a workflow.

    `advance` runs the function until it waits for steps, or has ended. The attributes that `Steps`
    uses belong to the function. Only the thread of the engine uses the other public attributes, and
    only while the function waits.

    :param read: returns the completion of the step at a position.
    :param read_version: returns the version of a change: its name, newest version, and the number
        of steps that the function has called.
    :param publish: stores a published value.
    :param tag: checks tags, which may be invalid, and sets them unless the second argument is True:
        for a replay.
    :param inherited_seeds: seeds of earlier steps, as `_step_notes.ORIGIN`.
    :param store_large: returns a value with references in place of large parts.
    :ivar called_count: number of steps that the function has called.
    :ivar is_over: the function has ended, with `value`: its result or a `Failure`.
    :ivar error: an error that ends the run but must not fail the workflow, or None: the function
        does not repeat its recorded steps, or the store cannot be read.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        arguments: Mapping[str, Any],
        history: History,
        *,
        read: Callable[[int], Completion],
        read_version: Callable[[str, int, int], int],
        publish: Callable[[str, Any], None],
        tag: Callable[[Mapping[str, Any], bool], None],
        store_large: Callable[[Any, str, int], Any],
        seed: str,
        inherited_seeds: Sequence[tuple[int, str]],
        now: float,
        first_signals: Mapping[str, int],
    ) -> None:
        self._function = function
        self._arguments = arguments
        self._history = history
        self._read = read
        self._read_version = read_version
        self._publish = publish
        self._tag = tag
        self._store_large = store_large
        self._seed = seed
        self._inherited_seeds = inherited_seeds
        self.now = now
        self.first_signals = first_signals
        # Set when the function has called `continue_as_new`.
        self._continuation: Continuation | None = None
        self.scopes = OpenScopes(self._current_task)
        self.called_count = 0
        # Steps without a delivered result, by position. The function has the other handles.
        self._undelivered: dict[int, Handle] = {}
        # Steps that failed: an exception that the function raises may be that of a step.
        self._failed: list[Handle] = []
        # Handles that `take_called` has not returned.
        self._called: list[Handle] = []
        self._pid = forks.current_pid
        self._has_begun = False
        self._is_closed = False
        self.is_over = False
        self.value: Any = None
        self.error: Exception | None = None

    @property
    def is_computing(self) -> bool:
        """Whether the function still runs although `advance` has returned."""
        return False

    @property
    def can_advance(self) -> bool:
        """Whether the function has not begun, or waits and a completion can be delivered."""
        if self.is_over or self._is_closed or self.is_computing:
            return False
        return not self._has_begun or self._history.has_completions

    @abc.abstractmethod
    def advance(self) -> None:
        """Run the function until it waits for steps or has ended."""

    @abc.abstractmethod
    def close(self) -> None:
        """End the function without a result. Idempotent."""

    def take_called(self) -> list[Handle]:
        """Return the steps that the function called since the previous call of this method."""
        called, self._called = self._called, []
        return called

    @abc.abstractmethod
    def _is_called_by_function(self) -> bool:
        """Return whether the caller is the function, in its thread or event loop."""

    def _current_task(self) -> asyncio.Task[Any] | None:
        return None

    def _check_caller(self) -> None:
        """Check that the caller is the function: another one would block, or change the order.

        :raises RuntimeError: if another thread, a fork, a step or a later program calls.
        """
        if self._pid != forks.current_pid or not self._is_called_by_function():
            raise RuntimeError(
                "Only the function of a workflow can call its steps, while it runs: not another"
                " thread, not a forked process and not a step"
            )

    # Used by `Steps`.

    def start(self, command: Command) -> Handle:
        self._check_caller()
        self._check_open()
        step_tasks.check(self._function, command)
        position = self.called_count
        if command.task is not None and position not in self._history.steps:
            task_retries.check_step(command.task)
        try:
            self._history.check(position, command)
        except exceptions.NonDeterministicWorkflow as error:
            raise self._interrupted_by(error) from error
        handle = Handle(position, command, self._history.received)
        self.called_count += 1
        self._undelivered[position] = handle
        self._called.append(handle)
        return handle

    @property
    def seed(self) -> str:
        for called_count, seed in self._inherited_seeds:
            if self.called_count < called_count:
                return seed
        return self._seed

    def _check_open(self) -> None:
        if self._is_closed or self._continuation is not None:
            raise exceptions.WorkflowInterrupted("The run of the workflow has ended")

    def continue_as_new(
        self, inputs: Mapping[str, Any], signals: sleep_and_wait_for.SignalNumbers
    ) -> NoReturn:
        self._check_caller()
        self._check_open()
        if self.scopes.are_open:
            raise RuntimeError(
                "A workflow cannot continue as new in a scope: its steps could not be reverted any"
                " more. Leave the scope first"
            )
        if not self.called_count:
            raise RuntimeError(
                "A workflow must call a step before it continues as new: it would never end"
            )
        checked_inputs = commands.continued_inputs(self._function, inputs)
        for handle in self._undelivered.values():
            if isinstance(handle.command.task, WaitingTask):
                handle.command.task.abandon()  # Another wait may receive its signal.
        self._continuation = Continuation(checked_inputs, signals.first())
        raise exceptions.WorkflowInterrupted("The workflow continues as new")

    def version(self, change: str, newest: int) -> int:
        self._check_caller()
        return self._read_version(change, newest, self.called_count)

    def publish(self, name: str, value: Any) -> None:
        self._check_caller()
        # A replay would replace the latest value by earlier ones.
        if not (self._is_closed or self._history.is_replaying(self.called_count)):
            self._publish(name, value)

    def store_large(self, value: Any, where: str, limit: int) -> Any:
        return self._store_large(value, where, limit)

    def tag(self, tags: Mapping[str, Any]) -> None:
        self._check_caller()
        # A replay would replace the latest value by earlier ones.
        is_replaying = self._is_closed or self._history.is_replaying(self.called_count)
        self._tag(tags, is_replaying)

    # Used by subclasses.

    def _deliver(self) -> Handle:
        """Set the result of the next complete step in its handle, and return the handle."""
        try:
            position = self._history.take_completion(self.called_count)
        except exceptions.NonDeterministicWorkflow as error:
            raise self._interrupted_by(error) from error
        handle = self._undelivered.pop(position)
        try:
            completion = self._read(position)
        except Exception as error:  # The store cannot be read.
            raise self._interrupted_by(error) from error
        self.now = completion.at
        if isinstance(handle.command.task, WaitingTask):
            for stored_name in completion.discarded:
                handle.command.task.discard(stored_name)
            if completion.signal is not None:
                handle.command.task.receive(completion.signal)
        handle.put(completion.value, is_copy=completion.is_copy)
        if handle.has_failed:
            self._failed.append(handle)
        return handle

    @property
    def _waits_for_no_step(self) -> bool:
        """Whether the function has received the results of all steps that it called."""
        return not self._undelivered

    def _interrupted_by(self, error: Exception) -> exceptions.WorkflowInterrupted:
        self.error, self._is_closed = error, True
        return exceptions.WorkflowInterrupted(str(error))

    def _fail(self, error: BaseException) -> None:
        """End with an exception of the function, or with the failure of the step that raised it."""
        if self._continuation is not None:
            self._end(None)
            return
        failures = (handle.failure_of(error) for handle in self._failed)
        failure = next((each for each in failures if each is not None), None)
        self._end(ft.Failure.from_exception(error) if failure is None else failure)

    def _end(self, value: Any) -> None:
        forks.end_fork(self._pid, value)
        if inspect.isgenerator(value) or inspect.isasyncgen(value):
            name = object_names.dotted(self._function)
            error = TypeError(f"Workflow {name!r} must not contain 'yield': return its result")
            value = ft.Failure.from_exception(error)
        try:
            self._history.check_end(self.called_count)
        except exceptions.NonDeterministicWorkflow as error:
            self.error = error
        else:
            self.is_over = True
            self.value = value if self._continuation is None else self._continuation


def _stored_form(value: Any) -> Any:
    """Return a copy of a result or failure, as a later run reads it from the store."""
    if type(value) in _SIMPLE:
        return value
    if isinstance(value, ft.Failure):
        return ft.Failure.from_dict(value.to_json(include_home=True), read_home=True)
    try:
        return codec.loads(codec.dumps(value))
    except exceptions.NotEncodable:  # There is no store, and no later run.
        return value
