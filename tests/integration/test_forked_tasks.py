"""A process that code of a flow forks ends with this code, and does not continue the flow."""

from __future__ import annotations

import asyncio
import os
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from wbengine import engines, retry, task
from wbengine.patterns import graph_flow, linear_flow

EXIT_CODES = {"return": 0, "raise": 1, "exit": 3}


def fork(end: str) -> int:
    """Fork this process, and return the exit code of the child, which leaves this function."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the child does not use
        pid = os.fork()
    if pid:
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if end == "raise":
        raise ValueError("raised in the child")
    if end == "exit":
        sys.exit(3)
    return -1


def processes_that_ended(run: Callable[[], Any]) -> list[str]:
    """Call a function in a fork; return the text of each process in which the call ended."""
    reader, writer = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about threads, which the child does not use
        pid = os.fork()
    if not pid:
        try:
            os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
            os.write(writer, f"{run()}\n".encode())
        except BaseException as error:
            os.write(writer, f"{error!r}\n".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with open(reader, encoding="utf-8") as lines:
        text = lines.read()
    os.waitpid(pid, 0)
    return text.splitlines()


@task.task(provides="code")
def plain(end: str) -> int:
    return fork(end)


@task.task(provides="code")
async def asynchronous(end: str) -> int:
    return fork(end)


@task.workflow(provides="code")
def workflow(steps: Any, end: str) -> int:
    return fork(end)


@task.workflow(provides="code")
async def async_workflow(steps: Any, end: str) -> int:
    return fork(end)


@pytest.mark.parametrize("end", EXIT_CODES)
@pytest.mark.parametrize("body", [plain, asynchronous, workflow, async_workflow])
def test_fork_in_serial_engine_ends_with_the_code_of_its_body(body: Any, end: str) -> None:
    flow = linear_flow.Flow("f").add(body("t"))
    ended = processes_that_ended(lambda: engines.run(flow, inputs={"end": end})["code"])
    assert ended == [str(EXIT_CODES[end])]


@pytest.mark.parametrize("end", EXIT_CODES)
def test_fork_in_coroutine_ends_although_others_wait(end: str, tmp_path: Path) -> None:
    effects = tmp_path / "effects"

    @task.task
    def note() -> None:
        with effects.open("a", encoding="utf-8") as file:
            file.write("once")

    @task.workflow(provides="code")
    async def concurrent(steps: Any) -> int:
        async def fork_later() -> int:
            return fork(end)

        _, code = await asyncio.gather(steps.run(note), fork_later())
        return code

    assert processes_that_ended(lambda: engines.run(concurrent)["code"]) == [str(EXIT_CODES[end])]
    assert effects.read_text(encoding="utf-8") == "once"


def test_fork_that_calls_a_step_ends_with_an_error() -> None:
    @task.workflow(provides="code")
    def calls_step(steps: Any) -> Any:
        code = fork("return")
        steps.sleep(0)
        return code

    assert processes_that_ended(lambda: engines.run(calls_step)["code"]) == ["1"]


class Hooked(task.Task):
    codes: ClassVar[list[int]] = []

    def pre_execute(self) -> None:
        self.codes.append(fork("return"))

    def execute(self) -> None:
        self.codes.append(10)

    def post_execute(self) -> None:
        self.codes.append(fork("return"))


def test_fork_in_hook_ends_with_this_hook() -> None:
    def run() -> list[int]:
        engines.run(linear_flow.Flow("f").add(Hooked("t")))
        return Hooked.codes

    assert processes_that_ended(run) == ["[0, 10, 0]"]


def test_fork_in_retry_controller_ends_with_this_controller() -> None:
    class Again(retry.Retry):
        def execute(self, history: Any) -> int:
            return fork("return")

        def on_failure(self, history: Any) -> str:
            return retry.RETRY if fork("raise") == 1 and len(history) < 2 else retry.REVERT

        def revert(self, history: Any, **kwargs: Any) -> None:
            raise ValueError(fork("exit"))

    @task.task
    def fails() -> None:
        raise LookupError

    flow = linear_flow.Flow("f", retry=Again("again")).add(fails("t"))
    (ended,) = processes_that_ended(lambda: engines.run(flow))
    assert ended == "ValueError(3)"


@pytest.mark.parametrize("end", ["return", "exit"])
def test_fork_in_decider_or_listener_ends_with_this_function(end: str) -> None:
    codes: list[int] = []

    def decide(history: Any) -> bool:
        codes.append(fork("raise"))
        return True

    def run() -> list[int]:
        first, second = plain("first", inject={"end": "return"}), Hooked("second")
        flow = graph_flow.Flow("f").add(first, second)
        flow.link(first, second, decider=decide)
        engine = engines.load(flow)
        engine.atom_notifier.register("SUCCESS", lambda *_, **__: codes.append(fork(end)))
        engine.run()
        return codes

    assert processes_that_ended(run) == [str([1, EXIT_CODES[end], EXIT_CODES[end]])]
