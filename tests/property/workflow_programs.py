"""Random workflow programs: one interpreter for plain and `async` workflows and for a model.

A program is a list of statements. Their keys are unique: they contain the positions of the
surrounding statements and the numbers of the iterations. Children execute programs, too; the keys
of their statements begin with the key of the statement that starts the child.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
from collections import Counter
from collections.abc import (
    AsyncIterator,
    Callable,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from pathlib import Path
from typing import Any, Protocol

from hypothesis import strategies as st

from wbengine import exceptions, running, steps, task
from wbengine._concurrency.crash_points import crashpoint
from wbengine.testing import World

#: Number of signals that each channel of the main program receives before the run.
SIGNALS = 2

#: Start of the keys of the main program.
MAIN = "k"

#: What tasks did, in order: ("do" | "note" | "reset" | "undo" | "untry", key). "note" stays.
EFFECTS: list[tuple[str, str]] = []

#: If not empty, a file that also receives the effects, with the uuids of the flows.
JOURNAL: list[Path] = []

#: Sends a signal to a flow, unless it has this number of them: uuid of the flow, name and number.
#: Tests set it.
SEND: list[Callable[[str, str, int], object]] = []

ERRORS = (ValueError, LookupError, exceptions.SignalTimeout)


#: What exists because of EFFECTS without notes.
OUTSIDE = World("outside")

#: Keys of flaky steps that were tried: the first try of each fails.
TRIES = World("tries", permanent=True, repeatable=True)


def clear() -> None:
    """Forget all effects."""
    EFFECTS.clear()
    OUTSIDE.clear()
    TRIES.clear()


def _record(what: str, key: str) -> None:
    EFFECTS.append((what, key))
    call = running.CURRENT.get()
    if JOURNAL and call is not None:
        flow = call.flow_uuid if call.origin is None else call.origin.flow_uuid
        file = os.open(JOURNAL[-1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(file, f"{what} {key} {flow}\n".encode())
        os.close(file)


def take_effect(what: str, key: str) -> None:
    _record(what, key)
    if what == "do" and not OUTSIDE.has(key):
        with contextlib.suppress(TimeoutError):  # It is done, although there is no answer.
            OUTSIDE.effect(key)
    crashpoint("task.after-effect")


def undo_effect(what: str, key: str) -> None:
    _record(what, key)
    OUTSIDE.undo(key, missing_ok=True)


@task.task
def work(key: str) -> int:
    take_effect("do", key)
    return len(key)


@work.revert
def undo_work(key: str) -> None:
    undo_effect("undo", key)


@task.task(retries=2)
def flaky(key: str) -> int:
    is_first = not TRIES.has(key)
    TRIES.effect(key)
    take_effect("do", key)
    if is_first:
        raise ValueError(key)
    return len(key) + 1


@flaky.revert(failed=True)
def undo_flaky(key: str, result: Any) -> None:
    undo_effect("undo" if isinstance(result, int) else "reset", key)


@task.task
def bad(key: str) -> None:
    take_effect("note", key)
    raise ValueError(key)


@task.task(retries=1)
def stubborn(key: str) -> None:
    take_effect("do", key)
    raise ValueError(key)


@stubborn.revert(failed=True)
def undo_stubborn(key: str) -> None:
    undo_effect("untry", key)


@task.task
def observe(key: str, values: Any) -> int:
    take_effect("note", key)
    return 1


class Send(task.Task):
    """Sends a signal to the own flow, and returns its name and number."""

    def execute(self, channel: str, number: int) -> tuple[str, int]:
        SEND[-1](self.request.flow_uuid, channel, number)
        return channel, number


class Continue(Exception):
    """Ends an attempt: the program continues as new after the statement of its outermost list."""


TASKS = {each.__name__: each for each in (work, flaky, bad, stubborn)}


Branch = functools.partial[Coroutine[Any, Any, Any]]


class Api(Protocol):
    """What a program uses."""

    async def run(self, name: str, key: str) -> Any: ...

    async def leave(self, name: str, key: str) -> None:
        """Start a step without waiting for it."""

    async def map(self, name: str, keys: Sequence[str], limit: int | None) -> list[Any]: ...

    async def sleep(self, seconds: float) -> None: ...

    async def wait_for(self, channel: str, *, has_default: bool) -> Any: ...

    async def race(self, channel: str, waits: Sequence[str]) -> list[Any]:
        """Wait for one channel at the same time, and return the results of the waits.

        They receive the stored signals in order. Of the others, "short" ones time out, "cancelled"
        ones are cancelled, and "any" ones receive a signal of another channel. Then each "long" one
        receives a signal that is sent now.
        """

    async def post(self, channel: str) -> Any:
        """Send a signal to the own flow, and wait for the next signal of the channel."""

    async def observe(self, key: str) -> int: ...

    async def child(self, kind: str, body: Sequence[Any], key: str, *, is_detached: bool) -> Any:
        """Execute a program in a child flow, and return its trace."""

    async def children(
        self, kind: str, programs: Mapping[str, Sequence[Any]], limit: int | None
    ) -> list[Any]:
        """Execute programs in child flows, by key, and return their traces."""

    def scope(self) -> contextlib.AbstractAsyncContextManager[None]: ...

    async def gather(self, branches: Sequence[Branch]) -> list[Any]: ...

    async def collect(self, how: str, branches: Sequence[Branch], key: str) -> list[Any]:
        """Execute branches in parallel, and a step after each one, in the order of asyncio."""

    async def abandon(self, how: str, branches: Sequence[Branch], key: str) -> None:
        """Begin branches in scopes. They are cancelled, at the latest when the program ends."""


async def execute_from(
    api: Api, body: Sequence[Any], trace: list[Any], path: str, start: int
) -> int | None:
    """Execute the statements of a flow from a position.

    :returns: the position at which a new attempt continues; None if the program has ended.
    """
    for position in range(start, len(body)):
        try:
            await execute(api, body[position : position + 1], trace, path, path, position)
        except Continue:
            return position + 1
    return None


async def execute(
    api: Api, body: Sequence[Any], trace: list[Any], path: str, channel: str, first: int = 0
) -> None:
    """Execute the statements, and append their results to `trace`.

    :param first: the position of the first statement.
    """
    for number, (kind, *details) in enumerate(body, first):
        key = f"{path}.{number}"
        match kind:
            case "run":
                trace.append(await api.run(details[0], key))
            case "leave":
                await api.leave(details[0], key)
            case "map":
                name, count, limit = details
                trace += await api.map(name, [f"{key}.{item}" for item in range(count)], limit)
            case "sleep":
                await api.sleep(details[0])
            case "wait":
                trace.append(await api.wait_for(channel, has_default=details[0]))
            case "race":
                trace.append(await api.race(channel, details[0]))
            case "post":
                trace.append(await api.post(channel))
            case "observe":
                trace.append(await api.observe(key))
            case "child":
                workflow, is_detached, program = details
                trace.append(await api.child(workflow, program, key, is_detached=is_detached))
            case "children":
                workflow, limit, items = details
                by_key = {f"{key}.{index}": program for index, program in enumerate(items)}
                trace += await api.children(workflow, by_key, limit)
            case "continue":
                await api.run("work", key)
                raise Continue
            case "raise":
                raise LookupError(key)
            case "loop":
                for iteration in range(details[0]):
                    await execute(api, details[1], trace, f"{key}.{iteration}", channel)
            case "branch":
                chosen = sum(value for value in trace if isinstance(value, int)) % 2
                await execute(api, details[chosen], trace, key, channel)
            case "try":
                try:
                    await execute(api, details[0], trace, f"{key}.try", channel)
                except ERRORS as error:
                    trace.append(described(error))
                    await execute(api, details[1], trace, f"{key}.except", channel)
            case "scope":
                async with api.scope():
                    await execute(api, details[0], trace, key, channel)
            case "gather" | "collect" | "abandon":
                traces: list[list[Any]] = [[] for _ in details[-1]]
                branches = [
                    functools.partial(execute, api, branch, traces[index], place, place)
                    for index, branch in enumerate(details[-1])
                    if (place := f"{key}.{index}")
                ]
                if kind == "abandon":
                    await api.abandon(details[0], branches, key)
                    continue
                if kind == "gather":
                    results = await api.gather(branches)
                else:
                    results = await api.collect(details[0], branches, key)
                trace += traces
                for result in results:
                    if isinstance(result, BaseException):
                        raise result


def described(error: BaseException) -> tuple[Any, ...]:
    """Return the kind and arguments of an error, whose class may be derived from its kind."""
    kind = next(each for each in ERRORS if isinstance(error, each))
    return (kind.__name__, *(() if kind is exceptions.SignalTimeout else error.args))


async def in_order(api: Api, branches: Sequence[Branch], key: str) -> list[Any]:
    """Collect the results of branches that run one after the other."""
    results = await api.gather(branches)
    for index in range(len(branches)):
        await api.run("work", f"{key}.{index}.done")
    return results


class Model:
    """Executes a program without an engine."""

    def __init__(self) -> None:
        self.effects: list[tuple[str, str]] = []
        #: Keys of steps that may still be in flight when the program ends, or may not begin.
        self.left: set[str] = set()
        #: Starts of the keys of steps in scopes that do not end before the program.
        self.abandoned: set[str] = set()
        #: Starts of the keys whose effects no failure or revert of the main program undoes. An
        #: abandoned branch that starts with one of them may leave effects.
        self.final: set[str] = set()
        #: Keys of the children, and of those that failed.
        self.flows: set[str] = set()
        self.failed: set[str] = set()
        self.channels: Counter[str] = Counter()
        self._sent: Counter[str] = Counter()
        self.result: list[Any] | None = None
        self.error: tuple[Any, ...] | None = None
        # Steps that were executed and not undone.
        self._complete: list[tuple[str, str]] = []

    def execute(self, body: Sequence[Any]) -> None:
        trace: list[Any] = []
        try:
            finish(self._execute_flow(body, trace, MAIN))
        except ERRORS as error:
            self.error = described(error)
        else:
            self.result = trace

    async def _execute_flow(self, body: Sequence[Any], trace: list[Any], path: str) -> None:
        """Execute a program, and undo it if it fails."""
        begin = len(self._complete)
        position: int | None = 0
        try:
            while position is not None:
                position = await execute_from(self, body, trace, path, position)
                if position is not None:
                    self._make_final(begin, path)
        except ERRORS:
            self._undo(begin)
            raise

    def _make_final(self, begin: int, path: str) -> None:
        """Keep the effects of a flow since this step forever."""
        left = {key for key in self.left if is_within(key, path)}
        self.final |= left | {key for _, key in self._complete[begin:]}
        del self._complete[begin:]

    def _undo(self, begin: int) -> None:
        while len(self._complete) > begin:
            self.effects.append(self._complete.pop())

    def is_final(self, key: str) -> bool:
        return any(is_within(key, path) for path in self.final)

    def may_stay(self, key: str) -> bool:
        """Return whether the effect of a step in flight may stay when the program has ended."""
        if self.is_abandoned(key):
            return self.is_final(key)
        failed = [path for path in self.failed if is_within(key, path)]
        if self.error is not None:
            failed.append(MAIN)
        final = [path for path in self.final if is_within(key, path)]
        return not failed or max(map(len, final), default=0) >= max(map(len, failed))

    def is_abandoned(self, key: str) -> bool:
        return any(map(key.startswith, self.abandoned))

    def is_left(self, key: str) -> bool:
        return key in self.left or self.is_abandoned(key)

    async def leave(self, name: str, key: str) -> None:
        self.left.add(key)

    async def run(self, name: str, key: str) -> Any:
        self.effects.append(("note" if name == "bad" else "do", key))
        match name:
            case "work":
                self._complete.append(("undo", key))
                return len(key)
            case "flaky":
                self.effects += [("reset", key), ("do", key)]
                self._complete.append(("undo", key))
                return len(key) + 1
            case "stubborn":
                self.effects += [("untry", key), ("do", key)]
                self._complete.append(("untry", key))
        raise ValueError(key)

    async def map(self, name: str, keys: Sequence[str], limit: int | None) -> list[Any]:
        results = []
        error: ValueError | None = None
        for key in keys:
            if error is not None and limit == 1:
                break
            try:
                results.append(await self.run(name, key))
            except ValueError as failed:
                error = error or failed
        if error is not None:
            raise error
        return results

    async def sleep(self, seconds: float) -> None: ...

    async def wait_for(self, channel: str, *, has_default: bool) -> Any:
        if self.channels[channel] < self.initial(channel) + self._sent[channel]:
            self.channels[channel] += 1
            return self.channels[channel]
        if has_default:
            return "default"
        raise exceptions.SignalTimeout("no signal")

    def initial(self, channel: str) -> int:
        """Return the number of signals that a channel receives before the run."""
        return 0 if any(is_within(channel, path) for path in self.flows) else SIGNALS

    async def post(self, channel: str) -> Any:
        self._sent[channel] += 1
        return await self.wait_for(channel, has_default=True)

    async def child(self, kind: str, body: Sequence[Any], key: str, *, is_detached: bool) -> Any:
        self.flows.add(key)
        trace: list[Any] = []
        begin = len(self._complete)
        try:
            await self._execute_flow(body, trace, key)
        except ERRORS:
            self.failed.add(key)
            raise
        if is_detached:
            del self._complete[begin:]
            self.final.add(key)
        return trace

    async def children(
        self, kind: str, programs: Mapping[str, Sequence[Any]], limit: int | None
    ) -> list[Any]:
        traces: list[Any] = []
        first: BaseException | None = None
        for key, body in programs.items():
            if first is not None and limit == 1:
                break
            try:
                traces.append(await self.child(kind, body, key, is_detached=False))
            except ERRORS as error:
                first = first or error
        if first is not None:
            raise first
        return traces

    async def race(self, channel: str, waits: Sequence[str]) -> list[Any]:
        results = [await self.wait_for(channel, has_default=True) for _ in waits]
        for index, (kind, result) in enumerate(zip(waits, results, strict=True)):
            if result != "default":
                continue
            if kind == "any":
                results[index] = "other"
            elif kind == "long":
                self._sent[channel] += 1
                results[index] = await self.wait_for(channel, has_default=True)
        return results

    async def observe(self, key: str) -> int:
        self.effects.append(("note", key))
        return 1

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        start = len(self._complete)
        try:
            yield
        except ERRORS:
            self._undo(start)
            raise

    async def gather(self, branches: Sequence[Branch]) -> list[Any]:
        return [caught(branch()) for branch in branches]

    async def collect(self, how: str, branches: Sequence[Branch], key: str) -> list[Any]:
        return await in_order(self, branches, key)

    async def abandon(self, how: str, branches: Sequence[Branch], key: str) -> None:
        self.abandoned.add(f"{key}.")
        for index, branch in enumerate(branches):
            # Before it is cancelled, a child may continue as new, or start a detached one.
            if not {"continue", "detached"}.isdisjoint(kinds(branch.args[1])):
                self.final.add(f"{key}.{index}")
        await self.run("work", key)


def is_within(key: str, path: str) -> bool:
    """Return whether a key is a path or below it."""
    return key == path or key.startswith(f"{path}.")


def finish(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that waits for nothing."""
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value
    raise AssertionError("the coroutine waits")


def caught(coroutine: Coroutine[Any, Any, Any]) -> Any:
    try:
        return finish(coroutine)
    except ERRORS as error:
        return error


def values_of(actual: steps.Steps | steps.AsyncSteps) -> list[Any]:
    """Return values that have to be the same in each replay, as arguments of a step."""
    return [actual.random(), str(actual.uuid4()), actual.now()]


def program_of(body: Sequence[Any], path: str = MAIN) -> dict[str, Any]:
    """Return the input of a workflow that executes a program."""
    return {"body": body, "path": path}


class _Sender:
    """Numbers the signals that a program sends, in all its attempts."""

    def __init__(self, program: Mapping[str, Any]) -> None:
        self._initial = SIGNALS if program["path"] == MAIN else 0
        self.sent: Counter[str] = Counter(program.get("sent", {}))

    def _next_number(self, channel: str) -> int:
        self.sent[channel] += 1
        return self.sent[channel] + (0 if channel.endswith(".other") else self._initial)


class Plain(_Sender):
    """A program in a plain workflow. Branches of `gather` run one after the other."""

    def __init__(self, actual: steps.Steps, program: Mapping[str, Any]) -> None:
        super().__init__(program)
        self._steps = actual

    async def child(self, kind: str, body: Sequence[Any], key: str, *, is_detached: bool) -> Any:
        inputs = {"program": program_of(body, key)}
        return self._steps.child(WORKFLOWS[kind], inputs, name=key, detached=is_detached)

    async def children(
        self, kind: str, programs: Mapping[str, Sequence[Any]], limit: int | None
    ) -> list[Any]:
        items = [program_of(body, key) for key, body in programs.items()]
        return self._steps.map(WORKFLOWS[kind], items, max_in_flight=limit)

    async def post(self, channel: str) -> Any:
        self._steps.run(Send, channel, self._next_number(channel))
        return self._steps.wait_for(channel)

    async def observe(self, key: str) -> int:
        return self._steps.run(observe, key, values_of(self._steps))

    async def run(self, name: str, key: str) -> Any:
        return self._steps.run(TASKS[name], key)

    async def leave(self, name: str, key: str) -> None:
        self._steps.run(TASKS[name], key)

    async def map(self, name: str, keys: Sequence[str], limit: int | None) -> list[Any]:
        return self._steps.map(TASKS[name], keys, max_in_flight=limit)

    async def sleep(self, seconds: float) -> None:
        self._steps.sleep(seconds)

    async def wait_for(self, channel: str, *, has_default: bool) -> Any:
        return self._steps.wait_for(channel, 0, **({"default": "default"} if has_default else {}))

    async def race(self, channel: str, waits: Sequence[str]) -> list[Any]:
        results = []
        for kind in waits:
            names = [channel, f"{channel}.other"] if kind == "any" else [channel]
            result = self._steps.wait_any(channel, timeout=0, default=(channel, "default"))[1]
            if result == "default" and kind in {"any", "long"}:
                self._steps.run(Send, names[-1], self._next_number(names[-1]))
                result = received(channel, self._steps.wait_any(*names))
            results.append(result)
        return results

    @contextlib.asynccontextmanager
    async def scope(self) -> AsyncIterator[None]:
        with self._steps.scope():
            yield

    async def gather(self, branches: Sequence[Branch]) -> list[Any]:
        return [caught(branch()) for branch in branches]

    async def collect(self, how: str, branches: Sequence[Branch], key: str) -> list[Any]:
        return await in_order(self, branches, key)

    async def abandon(self, how: str, branches: Sequence[Branch], key: str) -> None:
        await self.run("work", key)


class Async(_Sender):
    """A program in an `async` workflow."""

    def __init__(self, actual: steps.AsyncSteps, program: Mapping[str, Any]) -> None:
        super().__init__(program)
        self._steps = actual
        self._left: set[asyncio.Future[Any]] = set()

    async def child(self, kind: str, body: Sequence[Any], key: str, *, is_detached: bool) -> Any:
        inputs = {"program": program_of(body, key)}
        return await self._steps.child(WORKFLOWS[kind], inputs, name=key, detached=is_detached)

    async def children(
        self, kind: str, programs: Mapping[str, Sequence[Any]], limit: int | None
    ) -> list[Any]:
        items = [program_of(body, key) for key, body in programs.items()]
        return await self._steps.map(WORKFLOWS[kind], items, max_in_flight=limit)

    async def post(self, channel: str) -> Any:
        await self._steps.run(Send, channel, self._next_number(channel))
        return await self._steps.wait_for(channel)

    async def observe(self, key: str) -> int:
        return await self._steps.run(observe, key, values_of(self._steps))

    async def run(self, name: str, key: str) -> Any:
        return await self._steps.run(TASKS[name], key)

    async def leave(self, name: str, key: str) -> None:
        self._left.add(asyncio.ensure_future(self._steps.run(TASKS[name], key)))

    async def map(self, name: str, keys: Sequence[str], limit: int | None) -> list[Any]:
        return await self._steps.map(TASKS[name], keys, max_in_flight=limit)

    async def sleep(self, seconds: float) -> None:
        await self._steps.sleep(seconds)

    async def wait_for(self, channel: str, *, has_default: bool) -> Any:
        default = {"default": "default"} if has_default else {}
        return await self._steps.wait_for(channel, 0, **default)

    async def race(self, channel: str, waits: Sequence[str]) -> list[Any]:
        other = f"{channel}.other"

        async def wait(kind: str) -> Any:
            if kind == "any":
                return received(channel, await self._steps.wait_any(channel, other))
            timeout = 0 if kind == "short" else None
            try:
                return await self._steps.wait_for(channel, timeout, default="default")
            except asyncio.CancelledError:
                if kind != "cancelled":
                    raise
                return "default"

        tasks = [asyncio.ensure_future(wait(kind)) for kind in waits]
        # The steps of the tasks begin before this one, and those that can end do so before it.
        await asyncio.ensure_future(self._steps.sleep(0))
        open_tasks = [index for index, each in enumerate(tasks) if not each.done()]
        for index in open_tasks:
            if waits[index] == "cancelled":
                tasks[index].cancel()
        for kind, name in ("any", other), ("long", channel):
            for index in open_tasks:
                if waits[index] == kind:
                    await self._steps.run(Send, name, self._next_number(name))
                    await tasks[index]
        return await asyncio.gather(*tasks)

    def scope(self) -> Any:
        return self._steps.scope()

    async def gather(self, branches: Sequence[Branch]) -> list[Any]:
        coroutines = [branch() for branch in branches]
        return await asyncio.gather(*coroutines, return_exceptions=True)

    async def collect(self, how: str, branches: Sequence[Branch], key: str) -> list[Any]:
        async def run(index: int, branch: Branch) -> tuple[int, Any]:
            try:
                return index, await branch()
            except ERRORS as error:
                return index, error

        async def collect(ended: Iterable[asyncio.Future[tuple[int, Any]]]) -> None:
            for each in ended:
                index, results[index] = await each
                await self.run("work", f"{key}.{index}.done")

        results: dict[int, Any] = {}
        coroutines = [run(*item) for item in enumerate(branches)]
        match how:
            case "as_completed":
                await collect(asyncio.as_completed(coroutines))
            case "wait":
                pending = {asyncio.ensure_future(each) for each in coroutines}
                while pending:
                    done, pending = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
                    await collect(done)
            case "group":
                async with asyncio.TaskGroup() as group:
                    tasks = {group.create_task(each) for each in coroutines}
                await collect(tasks)
        return [results[index] for index in range(len(branches))]

    async def abandon(self, how: str, branches: Sequence[Branch], key: str) -> None:
        async def run(branch: Branch, key: str) -> None:
            try:
                async with self._steps.scope():
                    await branch()
                    await self._steps.wait_for(f"{key}.never")
            except asyncio.CancelledError:
                await self.observe(key)
                raise
            except ERRORS:
                pass

        coroutines = [run(branch, f"{key}.{index}.end") for index, branch in enumerate(branches)]
        if how == "group":
            with contextlib.suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    tasks = [group.create_task(each) for each in coroutines]
                    await self.run("work", key)
                    raise LookupError
            current = asyncio.current_task()
            if current is not None and current.cancelling():
                # A group of Python 3.11 that aborts suppresses a cancellation of its parent.
                raise asyncio.CancelledError
        else:
            tasks = [asyncio.ensure_future(each) for each in coroutines]
            await self.run("work", key)
        self._left.update(tasks)
        if how == "cancel":
            for each in tasks:
                each.cancel()


def received(channel: str, answer: tuple[str, Any]) -> Any:
    """Return the value of a signal of the channel, or "other"."""
    name, value = answer
    return value if name == channel else "other"


@task.workflow
def plain(steps: steps.Steps, program: Any) -> Any:
    trace = list(program.get("trace", ()))
    api = Plain(steps, program)
    start = program.get("start", 0)
    following = finish(execute_from(api, program["body"], trace, program["path"], start))
    if following is not None:
        steps.continue_as_new(program=_continued(program, following, trace, api.sent))
    return trace


@task.workflow
async def coroutines(steps: steps.AsyncSteps, program: Any) -> Any:
    trace = list(program.get("trace", ()))
    api = Async(steps, program)
    start = program.get("start", 0)
    following = await execute_from(api, program["body"], trace, program["path"], start)
    if following is not None:
        steps.continue_as_new(program=_continued(program, following, trace, api.sent))
    return trace


def _continued(
    program: Mapping[str, Any], start: int, trace: list[Any], sent: Mapping[str, int]
) -> dict[str, Any]:
    return {**program, "start": start, "trace": trace, "sent": dict(sent)}


WORKFLOWS = {"plain": plain, "async": coroutines}


def is_ordered(body: Any) -> bool:
    """Return whether the order of all steps is determined."""
    parallel = {"map", "gather", "collect", "abandon", "leave", "children"}
    return parallel.isdisjoint(kinds(body))


def kinds(body: Any, *, of_children: bool = True) -> Iterator[str]:
    """Return the kinds of all statements, and "detached" for a detached child."""
    if isinstance(body, (tuple, list)):
        if body and isinstance(body[0], str):
            yield body[0]
            if body[0] == "child" and body[2]:
                yield "detached"
            if body[0] in {"child", "children"} and not of_children:
                return
        for part in body:
            yield from kinds(part, of_children=of_children)


def _bodies(statement: Any) -> Any:
    return st.lists(statement, max_size=4)


_MAPS = st.one_of(
    st.tuples(
        st.just("map"),
        st.sampled_from(["work", "flaky"]),
        st.integers(0, 4),
        st.sampled_from([None, 1, 2]),
    ),
    # Otherwise it is not determined which items begin before a failure.
    st.tuples(
        st.just("map"),
        st.sampled_from(["bad", "stubborn"]),
        st.integers(0, 3),
        st.sampled_from([None, 1]),
    ),
)

_SIMPLE = st.one_of(
    st.tuples(st.just("run"), st.sampled_from(["work", "work", "work", "flaky"])),
    st.tuples(st.just("run"), st.sampled_from(sorted(TASKS))),
    _MAPS,
    st.tuples(st.just("sleep"), st.sampled_from([0, 0, 0.001])),
    st.tuples(st.just("wait"), st.booleans()),
    st.tuples(
        st.just("race"),
        st.lists(st.sampled_from(["short", "cancelled", "any", "long"]), min_size=1, max_size=5),
    ),
    st.just(("post",)),
    st.just(("observe",)),
    st.just(("raise",)),
    st.tuples(st.just("leave"), st.sampled_from(["work", "flaky"])),
)


def _nested(statement: Any) -> Any:
    bodies = _bodies(statement)
    return st.one_of(
        st.tuples(st.just("loop"), st.integers(0, 3), bodies),
        st.tuples(st.just("branch"), bodies, bodies),
        st.tuples(st.just("try"), bodies, bodies),
        st.tuples(st.just("try"), bodies, bodies),
        st.tuples(st.just("scope"), bodies),
        st.tuples(st.just("gather"), st.lists(bodies, min_size=2, max_size=3)),
        st.tuples(
            st.just("collect"),
            st.sampled_from(["as_completed", "wait", "group"]),
            st.lists(bodies, min_size=2, max_size=4),
        ),
        st.tuples(
            st.just("abandon"),
            st.sampled_from(["leave", "cancel", "group"]),
            st.lists(bodies, min_size=1, max_size=3),
        ),
    )


def _programs(statement: Any, size: int) -> Any:
    """Return programs of flows, which may continue as new."""
    continuing = st.one_of(
        st.just(("continue",)),
        st.builds(lambda body: ("try", [*body, ("continue",)], []), _bodies(statement)),
        st.builds(
            lambda body, other: ("branch", [*body, ("continue",)], other), *2 * [_bodies(statement)]
        ),
        st.builds(lambda body: ("loop", 2, [*body, ("continue",)]), _bodies(statement)),
    )
    # Most programs do not continue.
    elements = st.one_of(statement, statement, statement, continuing)
    return st.lists(elements, min_size=1, max_size=size).map(_with_closed_scopes)


def _with_closed_scopes(body: list[Any]) -> list[Any]:
    """Return the program without scopes that are open when it continues as new."""
    return _closed(body) if "continue" in kinds(body, of_children=False) else body


def _closed(part: Any, *, is_in_scope: bool = False) -> Any:
    if not isinstance(part, (tuple, list)) or (part and part[0] in ("child", "children")):
        return part
    if part and (part[0] == "abandon" or (is_in_scope and part[0] == "leave")):
        return ("observe",)
    is_in_scope = is_in_scope or (bool(part) and part[0] == "scope")
    return type(part)(_closed(each, is_in_scope=is_in_scope) for each in part)


def _with_children(statement: Any) -> Any:
    workflows = st.sampled_from(sorted(WORKFLOWS))
    program = _programs(statement, 3)
    return st.one_of(
        _nested(statement),
        st.tuples(st.just("child"), workflows, st.sampled_from([False, False, True]), program),
        st.tuples(
            st.just("children"),
            workflows,
            st.sampled_from([None, 1]),
            st.lists(program, max_size=3),
        ),
    )


#: Strategies for random programs.
CHILDLESS = _programs(st.recursive(_SIMPLE, _nested, max_leaves=16), 6)
PROGRAMS = _programs(st.recursive(_SIMPLE, _with_children, max_leaves=16), 6)
