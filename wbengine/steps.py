"""Steps of workflows.

The function of a workflow (`task.workflow`) receives a `Steps` object, or an `AsyncSteps` object if
it is `async def`. Each call of a step is recorded. When a later run calls the function again,
complete steps return their recorded results.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import types
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from typing import Any, Concatenate, Final, NoReturn, ParamSpec, Protocol, TypeVar, overload

from wbengine import exceptions
from wbengine._tasks import commands, sleep_and_wait_for, workflow_scopes
from wbengine._tasks.function import FunctionTask
from wbengine._tasks.workflow import Workflow
from wbengine.signals import MAX_VALUE_BYTES, check_name
from wbengine.types import _tags, codec

__all__ = ["AsyncSteps", "Steps"]

_P = ParamSpec("_P")
_Default = TypeVar("_Default")
_Item = TypeVar("_Item")
_R = TypeVar("_R")
_R_co = TypeVar("_R_co", covariant=True)
_T = TypeVar("_T")

_NO_DEFAULT: Final = object()
_TIMED_OUT: Final = object()


class _ClassTask(Protocol[_P, _R_co]):
    """A task written as a class, for type checkers: its parameters and result as a step."""

    def _step(self, *args: _P.args, **kwargs: _P.kwargs) -> _R_co: ...


class Handle(Protocol):
    """A step that was called. The engine implements this protocol."""

    @property
    def position(self) -> int:
        """Number of the step in the order of the calls, from 0."""

    @property
    def command(self) -> commands.Command:
        """The request that began the step."""

    @property
    def is_done(self) -> bool:
        """Whether the function has received the result."""

    @property
    def has_failed(self) -> bool:
        """Whether the result is an exception."""

    @property
    def future(self) -> asyncio.Future[Any]:
        """The result, for `async` workflows."""

    def result(self) -> Any:
        """Return the result of a step that is done, or raise its exception."""


class Program(Protocol):
    """A call of a workflow function. The engine implements this protocol."""

    #: Time of the latest completion that the function received, in Unix seconds.
    now: float
    #: The open scopes of the function.
    scopes: workflow_scopes.OpenScopes
    #: As `SignalNumbers.first`.
    first_signals: Mapping[str, int]

    @property
    def seed(self) -> str:
        """Seed of the next random value: the same in all calls of the function in one attempt.

        Steps that a fork inherited have another one than those after them.
        """

    def start(self, command: commands.Command) -> Handle:
        """Begin a step."""

    def version(self, change: str, newest: int) -> int:
        """Return the version of a change that this attempt uses."""

    def continue_as_new(
        self, inputs: Mapping[str, Any], signals: sleep_and_wait_for.SignalNumbers
    ) -> NoReturn:
        """End the attempt."""

    def publish(self, name: str, value: Any) -> None:
        """Store a value for other programs, unless the function is being replayed."""

    def store_large(self, value: Any, where: str, limit: int) -> Any:
        """Return a value with references in place of what is larger than the limit, if possible."""

    def tag(self, tags: Mapping[str, _tags.Value]) -> None:
        """Set tags of the flow, unless the function is being replayed."""


class BlockingProgram(Program, Protocol):
    """A call of a plain workflow function."""

    def wait(self) -> None:
        """Block the function until a further step is complete."""


class _CommonSteps:
    """Methods of both `Steps` and `AsyncSteps`."""

    def __init__(self, program: Program) -> None:
        self._program = program
        self._seed = program.seed
        self._generator = random.Random(self._seed)
        self._numbers = sleep_and_wait_for.SignalNumbers(program.first_signals)

    def now(self) -> dt.datetime:
        """Return the time (UTC) of the latest completion of a step.

        Before the first completion, this is the start of the attempt.
        """
        return dt.datetime.fromtimestamp(self._program.now, dt.UTC)

    @property
    def _random(self) -> random.Random:
        if self._program.seed != self._seed:
            self._seed = self._program.seed
            self._generator = random.Random(self._seed)
        return self._generator

    def random(self) -> float:
        """Return a random number from 0.0 up to 1.0, the same in each replay."""
        return self._random.random()

    def uuid4(self) -> uuid.UUID:
        """Return a random UUID, the same in each replay."""
        return uuid.UUID(int=self._random.getrandbits(128), version=4)

    def version(self, change: str, newest: int) -> int:
        """Return the version of a change of the function that this attempt uses.

        An attempt that passed this point before the change uses version 1. A new attempt, and one
        that has not reached this point, uses `newest`. Each later call and replay of the attempt
        returns the same version::

            if steps.version("ship-by-air", 2) >= 2:
                steps.run(ship_by_air, order=order)
            else:
                steps.run(ship, order=order)

        :param newest: the version of the current code. The code before the change has version 1.
        :raises TypeError, ValueError: if an argument is invalid.
        """
        if not isinstance(change, str) or not change:
            raise TypeError(f"The name of a change must be a non-empty str, got {change!r:.80}")
        if not isinstance(newest, int) or isinstance(newest, bool) or newest < 1:
            raise ValueError(f"The version of {change!r} must be 1 or more, got {newest!r:.80}")
        return self._program.version(change, newest)

    def publish(self, name: str, value: Any) -> None:
        """Store a value for other programs, which `operations.published` reads at any time.

        It replaces the previous value of this name. It is stored with the next write of the run: at
        the latest when the workflow waits or ends. A new attempt of the workflow begins without
        values.

        :raises TypeError, ValueError: if the name is invalid (the rules are those of signals).
        :raises NotEncodable: if the value cannot be encoded, or is longer than
            `signals.MAX_VALUE_BYTES` as JSON.
        """
        check_name(name, "Name of a published value")
        encoded = codec.dumps(value, f"published value {name!r}")
        if len(encoded) > MAX_VALUE_BYTES:
            where = f"published value {name!r}"
            value = self._program.store_large(codec.loads(encoded), where, MAX_VALUE_BYTES)
            encoded = codec.dumps(value, where)
        if len(encoded) > MAX_VALUE_BYTES:
            raise exceptions.NotEncodable(
                f"Published value {name!r} must have at most {MAX_VALUE_BYTES:,} bytes as JSON"
            )
        # A copy, because the function may change the value later.
        self._program.publish(name, codec.loads(encoded))

    def tag(self, /, **tags: _tags.Value) -> None:
        """Set tags of the flow, for example `steps.tag(order=17, paid=True)`.

        Lists of flows find them while the workflow runs. They are stored with the next write of the
        run, and stay if the workflow fails. The latest value of a key counts. More than 32 tags of
        a flow have no effect, and the engine logs a warning.

        :raises TypeError, ValueError: if a key or a value is invalid.
        :raises ValueError: if the submission set the tag.
        """
        self._program.tag(tags)

    def continue_as_new(self, /, **inputs: Any) -> NoReturn:
        """End this attempt, and begin a new one with an empty history in the same flow.

        ::

            @task.workflow
            def watch(steps, account, balance=0):
                for _ in range(100):
                    balance = steps.run(add_interest, account=account, balance=balance)
                    steps.sleep(86_400)
                steps.continue_as_new(balance=balance)

        The function is called again from its beginning. The records of the steps are deleted: what
        they did is final, and neither a failure nor a revert of the flow undoes it. Published
        values, tags, and signals that were not received stay. The new attempt uses the newest
        versions of `version`. If the workflow is retried, it begins with these inputs.

        :param inputs: new values of parameters of the function. Others keep their values.
        :raises RuntimeError: if a scope is open, or the attempt has not called a step.
        :raises TypeError: if the function does not have such a parameter.
        :raises NotEncodable: if a value cannot be encoded.
        """
        self._program.continue_as_new(inputs, self._numbers)

    def _wait_command(self, task: sleep_and_wait_for.WaitingTask) -> commands.Command:
        task.numbers = self._numbers
        return commands.waiting_command(task, signal=task.signal, timeout=task.timeout)

    def _start(self, command: commands.Command) -> Handle:
        current = self._program.scopes.current()
        if any(scope.has_failed for scope in current):
            # Nothing would revert it. `asyncio.gather` leaves such coroutines behind.
            raise RuntimeError(
                "A step cannot start in a scope that has failed: let the scope wait for all its"
                " coroutines, for example with asyncio.TaskGroup"
            )
        handle = self._program.start(command)
        for scope in current:
            scope.steps.append(handle)
        return handle


class Steps(_CommonSteps):
    """The steps of a workflow that is a plain function. Use it only in the thread of the function.

    Steps raise the exceptions of their tasks: the declared type if it is a builtin or defined in
    the module of the task, otherwise `WrappedFailure`.
    """

    _program: BlockingProgram

    @overload
    def run(
        self,
        task: type[FunctionTask[Callable[_P, Coroutine[Any, Any, _R]]]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R: ...

    @overload
    def run(
        self, task: type[FunctionTask[Callable[_P, _R]]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...

    @overload
    def run(self, task: type[_ClassTask[_P, _R]], /, *args: _P.args, **kwargs: _P.kwargs) -> _R: ...

    def run(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Execute a task and return its result.

        The arguments bind as in a call of the function of the task, but without `*args`.

        :param task: a task class, for example a function with `@task.task`.
        :raises TypeError: if `task` is not a task class, is a workflow, `Map`, `WaitFor` or
            `Sleep`, has a `revert` and is not at the top level of a module, or if the arguments do
            not match its signature.
        :raises NotEncodable: if an argument cannot be encoded.
        :raises Exception: the exception of the task, after its retries.
        """
        return self._result(self._start(commands.task_command(task, args, kwargs)))

    @overload
    def map(
        self,
        task: type[FunctionTask[Callable[Concatenate[_Item, ...], Coroutine[Any, Any, _R]]]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    def map(
        self,
        task: type[FunctionTask[Callable[Concatenate[_Item, ...], _R]]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    def map(
        self,
        task: type[Workflow[Concatenate[_Item, ...], _R]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    def map(
        self,
        task: type[_ClassTask[Concatenate[_Item, ...], _R]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    def map(
        self,
        task: Any,
        items: Iterable[Any],
        /,
        *,
        max_in_flight: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Execute a task for each item, in parallel, and return the results in order.

        The first parameter of the task receives the item. `kwargs` are its other arguments. A
        workflow instead of a task runs as a child flow for each item, as with `child`.

        :param items: the iteration may call steps.
        :param max_in_flight: maximum number of items at a time; None: no limit. With a limit, no
            item starts after a failure.
        :raises Exception: when the items in flight are done, the exception of the first item of the
            list that failed.
        """
        limit = _check_max_in_flight(max_in_flight)
        handles: list[Handle] = []
        in_flight: list[Handle] = []
        has_failed = False
        for item in items:
            command = _item_command(task, item, kwargs)
            while limit is not None:
                # The iteration of `items` may also have waited for steps.
                has_failed = has_failed or any(handle.has_failed for handle in in_flight)
                in_flight = [handle for handle in in_flight if not handle.is_done]
                if len(in_flight) < limit:
                    break
                self._program.wait()
            if has_failed:
                break
            handles.append(self._start(command))
            in_flight.append(handles[-1])
        for handle in handles:
            while not handle.is_done:
                self._program.wait()
        return [handle.result() for handle in handles]

    @overload
    def child(
        self,
        flow: type[Workflow[..., _R]],
        inputs: Mapping[str, Any] | None = ...,
        *,
        name: str | None = ...,
        detached: bool = ...,
    ) -> _R: ...

    @overload
    def child(
        self,
        flow: Callable[[], Any] | str,
        inputs: Mapping[str, Any] | None = ...,
        *,
        name: str | None = ...,
        detached: bool = ...,
    ) -> Any: ...

    def child(
        self,
        flow: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        detached: bool = False,
    ) -> Any:
        """Run a flow as a child of this one, wait for its end, and return its result.

        ::

            invoice = steps.child(bill, bill.inputs(order=order), name=f"bill-{order}")

        The child is a flow of its own, with its own record, retries and limits. It has the tags and
        the priority of its parent. If its parent is cancelled, suspended or reverted, so is the
        child. If conductors run its parent from a database with its job, they also run the child,
        and the parent is parked meanwhile. Otherwise, the child runs in the process of its parent.

        Each attempt of the parent starts new children. A retry of the parent is refused as long as
        a child in FAILURE has complete tasks.

        :param flow: a workflow, a function without arguments that makes a flow, or the name of one
            of both, such as `"billing:bill"`. If the flow has a store, other processes must be able
            to import it.
        :param inputs: inputs of the child by name.
        :param name: name of the child; default: that of the workflow or flow.
        :param detached: cancel, suspend and revert the child only by itself.
        :returns: the result of a workflow; of another flow, all values by name, as `engines.run`.
        :raises TypeError: if an argument has a wrong type.
        :raises NotEncodable: if an input cannot be encoded.
        :raises Cancelled: if the child was cancelled.
        :raises Exception: the exception of the child, as that of a task.
        """
        return self._result(self._start(_child_command(flow, inputs, name, detached)))

    def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds, without a slot of a worker.

        :raises TypeError, ValueError: if `seconds` is not a finite number of 0 or more.
        """
        self._wait(sleep_and_wait_for.Sleep(seconds), _NO_DEFAULT)

    @overload
    def wait_for(self, signal: str, timeout: float | None = ..., *, type: type[_T]) -> _T: ...

    @overload
    def wait_for(
        self, signal: str, timeout: float | None = ..., *, default: _Default, type: type[_T]
    ) -> _T | _Default: ...

    @overload
    def wait_for(
        self,
        signal: str,
        timeout: float | None = ...,
        *,
        default: Any = ...,
        type: types.UnionType | None = ...,
    ) -> Any: ...

    def wait_for(
        self,
        signal: str,
        timeout: float | None = None,
        *,
        default: Any = _NO_DEFAULT,
        type: Any = None,
    ) -> Any:
        """Wait for the next signal of this name and return its value.

        Each signal is received once: after the first signal of a name was received, the next call
        waits for the second one. Of several open waits, the one that began first receives the next
        signal.

        :param timeout: maximum number of seconds; None: no limit.
        :param default: the result after `timeout`, instead of the exception.
        :param type: class or annotation of the value: JSON is converted as for inputs. A value that
            does not fit is refused when it is sent, if the flow already waits. Otherwise, it is
            discarded when it is received, with a warning in the log of the step, and the wait
            continues. Its classes must be allowed (`codec.allow`).
        :raises SignalTimeout: if the signal did not arrive in time and there is no `default`.
        :raises TypeError, ValueError: if an argument is invalid.
        """
        return self._wait(sleep_and_wait_for.WaitFor(signal, timeout, type=type), default)

    def wait_any(
        self,
        *signals: str,
        timeout: float | None = None,
        default: Any = _NO_DEFAULT,
        type: Any = None,
    ) -> Any:
        """Wait for the first of several signals and return its name and value.

        ::

            name, value = steps.wait_any("approved", "rejected", timeout=86400)

        The parameters and exceptions are those of `wait_for`.
        """
        return self._wait(sleep_and_wait_for.WaitForAny(signals, timeout, type=type), default)

    def _wait(self, task: sleep_and_wait_for.WaitingTask, default: Any) -> Any:
        try:
            return self._result(self._start(self._wait_command(task)))
        except exceptions.SignalTimeout:
            if default is _NO_DEFAULT:
                raise
            return default

    @overload
    def signals(
        self, signal: str, timeout: float | None = ..., *, type: type[_T]
    ) -> Iterator[_T]: ...

    @overload
    def signals(
        self, signal: str, timeout: float | None = ..., *, type: types.UnionType | None = ...
    ) -> Iterator[Any]: ...

    def signals(
        self, signal: str, timeout: float | None = None, *, type: Any = None
    ) -> Iterator[Any]:
        """Iterate over the values of all signals of a name, in order, each once.

        ::

            for change in steps.signals("order-changed", timeout=3600):
                steps.run(apply_change, change=change)

        :param timeout: maximum number of seconds to wait for the next signal, after which the
            iteration ends. 0: only signals that were sent before. None: no limit.
        :param type: as for `wait_for`.
        """
        while True:
            value = self.wait_for(signal, timeout, default=_TIMED_OUT, type=type)
            if value is _TIMED_OUT:
                return
            yield value

    @contextlib.contextmanager
    def scope(self) -> Iterator[None]:
        """Revert the steps of a block if an exception leaves it, before the exception continues.

        ::

            try:
                with steps.scope():
                    steps.run(reserve_flight, trip=trip)
                    steps.run(reserve_hotel, trip=trip)
            except SoldOut:
                steps.run(offer_alternatives, trip=trip)

        The steps are reverted in reverse order of their completion.

        :raises Exception: the exception of the block, or of the first reversion that failed.
        """
        scope = workflow_scopes.Scope[Handle]()
        try:
            with self._program.scopes.enter(scope):
                yield
        except Exception:
            if scope.steps:
                self._result(self._start(_revert_command(scope)))
            raise

    def _result(self, handle: Handle) -> Any:
        while not handle.is_done:
            self._program.wait()
        return handle.result()


class AsyncSteps(_CommonSteps):
    """The steps of a workflow that is an `async def` function.

    Coroutines of the function may run in parallel (`asyncio.gather`, `asyncio.TaskGroup`). They run
    in an event loop of the workflow, without a thread. It has no timers: use `sleep` instead of
    `asyncio.sleep`. The exceptions are those of `Steps`.
    """

    @overload
    async def run(
        self,
        task: type[FunctionTask[Callable[_P, Coroutine[Any, Any, _R]]]],
        /,
        *args: _P.args,
        **kwargs: _P.kwargs,
    ) -> _R: ...

    @overload
    async def run(
        self, task: type[FunctionTask[Callable[_P, _R]]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...

    @overload
    async def run(
        self, task: type[_ClassTask[_P, _R]], /, *args: _P.args, **kwargs: _P.kwargs
    ) -> _R: ...

    async def run(self, task: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Execute a task and return its result. See `Steps.run`."""
        return await self._start(commands.task_command(task, args, kwargs)).future

    @overload
    async def map(
        self,
        task: type[FunctionTask[Callable[Concatenate[_Item, ...], Coroutine[Any, Any, _R]]]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    async def map(
        self,
        task: type[FunctionTask[Callable[Concatenate[_Item, ...], _R]]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    async def map(
        self,
        task: type[Workflow[Concatenate[_Item, ...], _R]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    @overload
    async def map(
        self,
        task: type[_ClassTask[Concatenate[_Item, ...], _R]],
        items: Iterable[_Item],
        /,
        *,
        max_in_flight: int | None = ...,
        **kwargs: Any,
    ) -> list[_R]: ...

    async def map(
        self,
        task: Any,
        items: Iterable[Any],
        /,
        *,
        max_in_flight: int | None = None,
        **kwargs: Any,
    ) -> list[Any]:
        """Execute a task for each item, in parallel, and return the results. See `Steps.map`."""
        limit = _check_max_in_flight(max_in_flight)
        item_list = list(items)
        free = asyncio.Semaphore(len(item_list) if limit is None else limit)
        failed = False

        async def run_item(item: Any) -> Any:
            nonlocal failed
            async with free:
                if failed:
                    return None
                try:
                    return await self._waited(_item_command(task, item, kwargs))
                except Exception:
                    failed = True
                    raise

        results: list[Any] = await asyncio.gather(*map(run_item, item_list), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return results

    @overload
    async def child(
        self,
        flow: type[Workflow[..., _R]],
        inputs: Mapping[str, Any] | None = ...,
        *,
        name: str | None = ...,
        detached: bool = ...,
    ) -> _R: ...

    @overload
    async def child(
        self,
        flow: Callable[[], Any] | str,
        inputs: Mapping[str, Any] | None = ...,
        *,
        name: str | None = ...,
        detached: bool = ...,
    ) -> Any: ...

    async def child(
        self,
        flow: Any,
        inputs: Mapping[str, Any] | None = None,
        *,
        name: str | None = None,
        detached: bool = False,
    ) -> Any:
        """Run a flow as a child of this one, and return its result. See `Steps.child`.

        If the coroutine is cancelled, the child is cancelled, unless it is detached.
        """
        command = _child_command(flow, inputs, name, detached)
        return await self._waited(command)

    async def sleep(self, seconds: float) -> None:
        """Wait for a number of seconds. See `Steps.sleep`."""
        await self._wait(sleep_and_wait_for.Sleep(seconds), _NO_DEFAULT)

    @overload
    async def wait_for(self, signal: str, timeout: float | None = ..., *, type: type[_T]) -> _T: ...

    @overload
    async def wait_for(
        self, signal: str, timeout: float | None = ..., *, default: _Default, type: type[_T]
    ) -> _T | _Default: ...

    @overload
    async def wait_for(
        self,
        signal: str,
        timeout: float | None = ...,
        *,
        default: Any = ...,
        type: types.UnionType | None = ...,
    ) -> Any: ...

    async def wait_for(
        self,
        signal: str,
        timeout: float | None = None,
        *,
        default: Any = _NO_DEFAULT,
        type: Any = None,
    ) -> Any:
        """Wait for the next signal of this name and return its value. See `Steps.wait_for`."""
        return await self._wait(sleep_and_wait_for.WaitFor(signal, timeout, type=type), default)

    async def wait_any(
        self,
        *signals: str,
        timeout: float | None = None,
        default: Any = _NO_DEFAULT,
        type: Any = None,
    ) -> Any:
        """Wait for the first of several signals. See `Steps.wait_any`."""
        return await self._wait(sleep_and_wait_for.WaitForAny(signals, timeout, type=type), default)

    async def _wait(self, task: sleep_and_wait_for.WaitingTask, default: Any) -> Any:
        try:
            return await self._waited(self._wait_command(task))
        except exceptions.SignalTimeout:
            if default is _NO_DEFAULT:
                raise
            return default

    async def _waited(self, command: commands.Command) -> Any:
        try:
            return await self._start(command).future
        except asyncio.CancelledError:
            if isinstance(command.task, sleep_and_wait_for.WaitingTask):
                command.task.abandon()  # The function does not receive the result of this step.
            raise

    @overload
    def signals(
        self, signal: str, timeout: float | None = ..., *, type: type[_T]
    ) -> AsyncIterator[_T]: ...

    @overload
    def signals(
        self, signal: str, timeout: float | None = ..., *, type: types.UnionType | None = ...
    ) -> AsyncIterator[Any]: ...

    async def signals(
        self, signal: str, timeout: float | None = None, *, type: Any = None
    ) -> AsyncIterator[Any]:
        """Iterate over the values of all signals of a name. See `Steps.signals`."""
        while True:
            value = await self.wait_for(signal, timeout, default=_TIMED_OUT, type=type)
            if value is _TIMED_OUT:
                return
            yield value

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        """Revert the steps of a block if an exception leaves it. See `Steps.scope`.

        Steps of `asyncio` tasks that were created in the block belong to it. After an exception
        has left the block, they cannot begin, and open waits are cancelled.
        """
        scope = workflow_scopes.Scope[Handle]()
        try:
            with self._program.scopes.enter(scope):
                yield
        except (Exception, asyncio.CancelledError):
            for step in scope.steps:
                if not step.is_done and step.command.is_wait:
                    step.future.cancel()
            if scope.steps:
                await _completion(self._start(_revert_command(scope)).future)
            raise


async def _completion(future: asyncio.Future[Any]) -> None:
    """Wait for a future, also while the current task is being cancelled.

    :raises CancelledError: when the future is done, if the task was cancelled.
    """
    cancellation: asyncio.CancelledError | None = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancellation = error
    future.result()
    if cancellation is not None:
        raise cancellation


def _revert_command(scope: workflow_scopes.Scope[Handle]) -> commands.Command:
    return commands.revert_command([step.position for step in scope.steps])


def _item_command(task: Any, item: Any, kwargs: Mapping[str, Any]) -> commands.Command:
    if isinstance(task, type) and issubclass(task, Workflow):
        return _child_command(task, task.inputs(item, **kwargs), None, False)
    return commands.task_command(task, (item,), kwargs)


def _child_command(flow: Any, inputs: Any, name: Any, detached: Any) -> commands.Command:
    if not isinstance(detached, bool):
        raise TypeError(f"detached must be True or False, got {detached!r:.80}")
    return commands.child_command(flow, inputs, name, is_detached=detached)


def _check_max_in_flight(value: Any) -> int | None:
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise ValueError(
            f"max_in_flight must be a whole number of at least 1, or None, got {value!r:.80}"
        )
    return value
