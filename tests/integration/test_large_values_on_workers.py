"""Large values between workers: messages contain references."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import framed
from tests.support.framed import SIZE
from tests.support.workers import worker_in_thread
from wbengine import engines, exceptions, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends
from wbengine.transports import _encoding


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "payloads"


@pytest.fixture
def sizes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """The sizes of the messages of this process."""
    sent: list[int] = []
    head_of = _encoding.head_of

    def noted(envelope: Any, *rest: Any) -> bytes:
        head = head_of(envelope, *rest)
        sent.append(len(head) + len(envelope.encoded))
        return head

    monkeypatch.setattr(_encoding, "head_of", noted)
    yield sent


def options(tmp_path: Path) -> dict[str, Any]:
    return {"url": f"memory://{tmp_path.name}"}


def test_reference_is_passed_from_worker_to_worker(
    tmp_path: Path, place: Path, sizes: list[int]
) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Length("length"))
    conf = {"connection": f"sqlite:///{tmp_path}/flows.db", "payloads": str(place)}
    broker = options(tmp_path)
    with (
        worker_in_thread(broker["url"], framed, payloads=str(place)),
        backends.backend(conf) as backend,
    ):
        values = engines.run(flow, backend=backend, engine="workers", **broker)
    assert values["length"] == SIZE // 256 * 256
    assert values["frame"] == framed.Make("make").execute()
    assert len(list(place.glob("data/*/*"))) == 1
    assert sizes and max(sizes) < 20_000


def test_engine_without_a_store_uses_references(
    tmp_path: Path, place: Path, sizes: list[int]
) -> None:
    flow = linear_flow.Flow("f").add(framed.Undo("undo"), framed.Length("length"))
    broker = options(tmp_path)
    with worker_in_thread(broker["url"], framed, payloads=str(place)):
        values = engines.run(
            flow, {"frame": b"x" * SIZE}, engine="workers", payloads=str(place), **broker
        )
    assert values["length"] == SIZE
    assert values["undone"] == b"x" * SIZE + b"!"
    assert max(sizes) < 20_000


@pytest.mark.parametrize("processes", [1])
def test_child_process_of_a_worker_loads_and_stores_values(
    tmp_path: Path, place: Path, processes: int
) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Undo("undo"))
    broker = options(tmp_path)
    with worker_in_thread(broker["url"], framed, payloads=str(place), processes_count=processes):
        values = engines.run(flow, engine="workers", payloads=str(place), **broker)
    assert values["undone"] == values["frame"] + b"!"


def test_worker_without_the_setting_names_it(tmp_path: Path, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Length("length"))
    broker = options(tmp_path)
    with (
        worker_in_thread(broker["url"], framed),
        pytest.raises(exceptions.PayloadUnavailable) as caught,
    ):
        engines.run(flow, {"frame": b"x" * SIZE}, engine="workers", payloads=str(place), **broker)
    assert "argument 'frame' of task 'length'" in str(caught.value)
    assert "--payloads" in str(caught.value)
    assert re.search(r"and worker \S+ cannot read it", str(caught.value))


def test_engine_without_the_setting_gets_values_in_messages(tmp_path: Path, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Length("length"))
    broker = options(tmp_path)
    with worker_in_thread(broker["url"], framed, payloads=str(place)):
        values = engines.run(flow, engine="workers", **broker)
    assert values["length"] == SIZE // 256 * 256
    assert list(place.glob("data/*/*")) == []


def test_local_task_of_a_flow_on_workers_gets_a_plain_value(tmp_path: Path, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Length("length"))
    broker = options(tmp_path)
    with worker_in_thread(broker["url"], framed.Make, payloads=str(place)):
        values = engines.run(
            flow, engine="workers", local_tasks=["length"], payloads=str(place), **broker
        )
    assert values["length"] == SIZE // 256 * 256


def test_items_and_revert_on_workers(tmp_path: Path, place: Path) -> None:
    flow = linear_flow.Flow("f").add(
        framed.texts("texts", provides="texts", inject={"count": 3}),
        task.Map(framed.doubled("double"), over="texts", item="text", provides="doubled"),
        framed.Make("make"),
        framed.Undo("undo"),
        framed.Fail("fail"),
    )
    framed.seen.clear()
    broker = options(tmp_path)
    with (
        worker_in_thread(broker["url"], framed, payloads=str(place)),
        pytest.raises(ValueError, match="no"),
    ):
        engines.run(flow, engine="workers", payloads=str(place), **broker)
    size = SIZE // 256 * 256
    assert framed.seen == [("bytes", size, "bytes", size + 1)]
