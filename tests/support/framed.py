"""Tasks and workflows that pass large values."""

from __future__ import annotations

import dataclasses
import os
import pathlib
from typing import Any

from wbengine import retry, steps, task
from wbengine.patterns import linear_flow

#: Number of bytes of a large value.
SIZE = 300_000

seen: list[Any] = []


class Make(task.Task):
    default_provides = "frame"

    def execute(self, size: int = SIZE) -> bytes:
        return bytes(range(256)) * (size // 256)


class Two(task.Task):
    default_provides = ("left", "right")

    def execute(self) -> tuple[str, str]:
        return "l" * SIZE, "r" * SIZE


class Join(task.Task):
    default_provides = "joined"

    def execute(self, left: str, right: str) -> str:
        return left[:2] + right[:2]


class Many(task.Task):
    default_provides = {f"part{n}" for n in range(100)}  # a dict with these keys

    def execute(self) -> dict[str, str]:
        return {f"part{n}": f"{n} " * 1000 for n in range(100)}


class ReadPart(task.Task):
    default_provides = "part"

    def execute(self, part7: str) -> str:
        return part7[:4]


class Length(task.Task):
    default_provides = "length"

    def execute(self, frame: bytes) -> int:
        assert type(frame) is bytes
        return len(frame)


class LengthLater(task.Task):
    default_provides = "length"

    async def execute(self, frame: bytes) -> int:
        assert type(frame) is bytes
        return len(frame)


class Undo(task.Task):
    default_provides = "undone"

    def execute(self, frame: bytes) -> bytes:
        return frame + b"!"

    def revert(self, frame: bytes, result: Any, **kwargs: Any) -> None:
        seen.append((type(frame).__name__, len(frame), type(result).__name__, len(result)))


class Fail(task.Task):
    def execute(self) -> None:
        raise ValueError("no")


class Once(retry.Retry):
    def on_failure(self, history: Any, *args: Any, **kwargs: Any) -> retry.Decision:
        seen.append([type(value).__name__ for value, _ in history])
        return retry.REVERT

    def execute(self, history: Any, *args: Any, **kwargs: Any) -> str:
        return "x" * SIZE


@dataclasses.dataclass(frozen=True)
class Note:
    text: str


class ReadNote(task.Task):
    default_provides = "length"

    def execute(self, note: Note) -> int:
        assert type(note) is Note
        return len(note.text)


@task.task
def nested() -> dict[str, Any]:
    return {"deep": [{"blobs": [b"x" * SIZE] * 3}], "name": "n"}


@task.task
def sum_of(nested: dict[str, Any]) -> int:
    return sum(map(len, nested["deep"][0]["blobs"]))


@task.task
def sized(text: str) -> int:
    return len(text)


@task.task
def doubled(text: str) -> str:
    return text * 2


@task.task
def texts(count: int) -> list[str]:
    return [str(n) * SIZE for n in range(count)]


@task.workflow
def grow(steps: steps.Steps, text: str) -> str:
    longer = steps.run(doubled, text=text)
    assert type(longer) is str
    steps.publish("text", longer)
    length = steps.run(sized, text=longer)
    sent = steps.wait_for("more")
    assert type(sent) is str
    return longer + sent + str(length)


def make() -> linear_flow.Flow:
    return linear_flow.Flow("frames").add(Make("make"), Length("length"))


@task.workflow
def measure(steps: steps.Steps, item: str) -> int:
    return len(item)


def take() -> linear_flow.Flow:
    return linear_flow.Flow("take").add(Length("length"))


def wait() -> linear_flow.Flow:
    return linear_flow.Flow("wait").add(
        task.WaitFor("more", provides="text", type=str), sized("sized")
    )


def make_grow() -> linear_flow.Flow:
    return linear_flow.Flow("grow").add(grow("grow", inject={"text": "t" * SIZE}))


@task.task
def delete_values() -> None:
    """Delete all large values, as an administrator might do by mistake."""
    for path in pathlib.Path(os.environ["WBENGINE_PAYLOADS"]).glob("data/*/*"):
        path.unlink()


def make_and_lose() -> linear_flow.Flow:
    return linear_flow.Flow("frames").add(Make("make"), delete_values("delete"))


def lose() -> linear_flow.Flow:
    return make_and_lose().add(Length("length"))


@task.task
def make_table() -> Any:
    import pandas as pd

    return pd.DataFrame({"a": [1, 2, 3]})


def table() -> linear_flow.Flow:
    return linear_flow.Flow("table").add(make_table("table", provides="table"))
