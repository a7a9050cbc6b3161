"""Large values out of line, through engines, workflows, signals and submissions."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import framed
from tests.support.framed import SIZE
from tests.support.reading import read_flow
from wbengine import engines, exceptions, operations, task
from wbengine.patterns import linear_flow
from wbengine.persistence import backends, base
from wbengine.types._references import Reference

ENGINES = ["serial", "parallel", "parallel://?executor=processes&max_workers=1"]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "payloads"


@pytest.fixture
def store(tmp_path: Path, place: Path) -> Iterator[base.Backend]:
    conf = {"connection": f"sqlite:///{tmp_path}/flows.db", "payloads": str(place)}
    with backends.backend(conf) as backend:
        yield backend


@pytest.fixture(autouse=True)
def nothing_seen() -> None:
    framed.seen.clear()


def payloads_in(place: Path) -> list[Path]:
    return [path for path in place.glob("data/*/*") if path.is_file()]


def largest_row(tmp_path: Path) -> int:
    """Return the size of the largest value in the database."""
    largest = 0
    with contextlib.closing(sqlite3.connect(tmp_path / "flows.db")) as connection:
        for (table,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'"):
            for row in connection.execute(f"SELECT * FROM {table}"):
                sizes = [len(value) for value in row if isinstance(value, str | bytes)]
                largest = max([largest, *sizes])
    return largest


@pytest.mark.parametrize("engine", ENGINES)
def test_result_is_stored_once_and_tasks_see_plain_values(
    engine: str, store: base.Backend, place: Path, tmp_path: Path
) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Length("a"), framed.Length("b"))
    values = engines.run(flow, backend=store, engine=engine)
    assert values["length"] == [SIZE // 256 * 256] * 2
    assert values["frame"] == framed.Make("make").execute()
    assert len(payloads_in(place)) == 1
    assert largest_row(tmp_path) < 20_000


@pytest.mark.parametrize("engine", ENGINES)
def test_input_is_stored_out_of_line(
    engine: str, store: base.Backend, place: Path, tmp_path: Path
) -> None:
    flow = linear_flow.Flow("f").add(framed.Length("a"))
    values = engines.run(flow, {"frame": b"x" * SIZE}, backend=store, engine=engine)
    assert values == {"frame": b"x" * SIZE, "length": SIZE}
    assert len(payloads_in(place)) == 1
    assert largest_row(tmp_path) < 20_000


def test_async_task_receives_a_plain_value(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.LengthLater("a"))
    assert engines.run(flow, backend=store)["length"] == SIZE // 256 * 256


def test_parts_of_a_result_are_separate(store: base.Backend, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Two("two"), framed.Join("join"))
    assert engines.run(flow, backend=store)["joined"] == "llrr"
    assert len(payloads_in(place)) == 2


def test_part_of_many_small_ones_is_found(store: base.Backend, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Many("many"), framed.ReadPart("read"))
    assert engines.run(flow, backend=store)["part"] == "7 7 "
    assert len(payloads_in(place)) == 1


@pytest.mark.parametrize("engine", ENGINES)
def test_items_of_a_map_are_plain_values(
    engine: str, store: base.Backend, place: Path, tmp_path: Path
) -> None:
    flow = linear_flow.Flow("f").add(
        framed.texts("texts", provides="texts", inject={"count": 3}),
        task.Map(framed.doubled("double"), over="texts", item="text", provides="doubled"),
        task.Map(framed.sized("size"), over="doubled", item="text", provides="sizes"),
    )
    values = engines.run(flow, backend=store, engine=engine)
    assert values["sizes"] == [2 * SIZE] * 3
    assert values["doubled"] == [str(n) * 2 * SIZE for n in range(3)]
    assert len(payloads_in(place)) == 6
    assert largest_row(tmp_path) < 20_000


def test_revert_receives_plain_values(store: base.Backend) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Undo("undo"), framed.Fail("fail"))
    with pytest.raises(ValueError, match="no"):
        engines.run(flow, backend=store)
    size = SIZE // 256 * 256
    assert framed.seen == [("bytes", size, "bytes", size + 1)]


def test_retry_controller_receives_plain_values(store: base.Backend, place: Path) -> None:
    flow = linear_flow.Flow("f", framed.Once(name="once", provides="text")).add(
        framed.sized("size", rebind={"text": "text"}), framed.Fail("fail")
    )
    with pytest.raises(ValueError, match="no"):
        engines.run(flow, backend=store)
    assert framed.seen == [["str"]]
    assert len(payloads_in(place)) == 1


def test_decider_receives_plain_values(store: base.Backend) -> None:
    from wbengine.patterns import graph_flow

    make, length = framed.Make("make"), framed.Length("length")
    flow = graph_flow.Flow("f").add(make, length)
    flow.link(make, length, decider=lambda history: framed.seen.append(type(history["make"])))
    engines.run(flow, backend=store)
    assert framed.seen == [bytes]


def test_storage_returns_plain_values(store: base.Backend) -> None:
    engine = engines.load(framed.make(), backend=store)
    engine.run()
    frame = framed.Make("make").execute()
    storage = engine.storage
    assert storage.fetch("frame") == storage.get("make") == frame
    assert storage.fetch_mapped_args({"frame": "frame"}, "length") == {"frame": frame}
    assert type(storage.record("make").results) is Reference


@pytest.mark.parametrize("engine", ENGINES)
def test_nested_bytes_are_stored_out_of_line(
    engine: str, store: base.Backend, place: Path, tmp_path: Path
) -> None:
    flow = linear_flow.Flow("f").add(
        framed.nested("nested", provides="nested"), framed.sum_of("sum", provides="sum")
    )
    values = engines.run(flow, backend=store, engine=engine)
    assert values["sum"] == 3 * SIZE
    assert values["nested"] == {"deep": [{"blobs": [b"x" * SIZE] * 3}], "name": "n"}
    assert largest_row(tmp_path) < 20_000
    # Bytes are stored without base64.
    assert sum(path.stat().st_size for path in payloads_in(place)) < 3 * SIZE


def test_lost_payload_fails_the_task_that_needs_it(store: base.Backend, place: Path) -> None:
    flow = linear_flow.Flow("f").add(framed.Make("make"), framed.Length("needs"))
    engine = engines.load(flow, backend=store)

    def lose(event: str, details: Any) -> None:
        if details["task_name"] == "make":
            for path in payloads_in(place):
                path.unlink()

    engine.atom_notifier.register("SUCCESS", lose)
    with pytest.raises(exceptions.PayloadUnavailable) as caught:
        engine.run()
    for part in ("argument 'frame' of task 'needs'", "is lost", str(place)):
        assert part in str(caught.value)
    failures = engine.storage.get_failures()
    assert list(failures) == ["needs"]


@pytest.mark.parametrize(
    ("lost", "in_conductor"), [("step", False), ("input", False), ("step", True)]
)
def test_replay_without_a_value_suspends_the_flow_in_any_engine(
    lost: str, in_conductor: bool, store: base.Backend, place: Path
) -> None:
    """The step succeeded, so the function must not see a failure, which it could handle."""
    engine = engines.load(framed.grow, {"text": "t" * SIZE}, backend=store)
    engine.park_after = 0.0
    engine.run()
    uuid = engine.storage.flow_uuid
    operations.signal(store, uuid, "more", "m" * SIZE)
    steps = [each for each in read_flow(store, uuid) if each.is_step]
    (address,) = (each.results.address for each in steps if type(each.results) is Reference)
    for path in payloads_in(place):
        if (path.name == address) == (lost == "step"):
            path.rename(place / path.name)
    resumed: Any = operations.resume(store, uuid)
    resumed.suspends_on_difference = in_conductor
    with pytest.raises(exceptions.PayloadUnavailable, match="is lost"):
        resumed.run()
    detail = read_flow(store, uuid)
    assert (detail.state, detail.is_blocked) == ("SUSPENDED", True)
    for path in place.glob("?" * 64):
        path.rename(place / "data" / path.name[:2] / path.name)
    operations.resume(store, uuid).run()
    assert engines.handle(uuid, backend=store).state == "SUCCESS"


def test_workflow_fails_if_its_input_is_lost_before_it_begins(
    store: base.Backend, place: Path
) -> None:
    engine = engines.load(framed.grow, {"text": "t" * SIZE}, backend=store)
    engine.prepare()
    for path in payloads_in(place):
        path.unlink()
    with pytest.raises(exceptions.PayloadUnavailable, match=r"argument 'text' .* is lost"):
        engine.run()


def test_values_are_fetched_as_references_without_loading_them(
    store: base.Backend, place: Path
) -> None:
    engine = engines.load(framed.make(), backend=store)
    engine.run()
    for path in payloads_in(place):
        path.unlink()
    assert type(engine.storage.fetch_many(load=False)["frame"][0]) is Reference


def test_workflow_sees_plain_values(store: base.Backend, place: Path, tmp_path: Path) -> None:
    flow = framed.grow("grow", provides="result")
    engine = engines.load(flow, {"text": "t" * SIZE}, backend=store)
    engine.signal("more", "m" * SIZE)
    engine.run()
    assert engine.storage.fetch("result") == "t" * 2 * SIZE + "m" * SIZE + str(2 * SIZE)
    published = operations.published(store, engine.storage.flow_uuid)
    assert published == {"text": "t" * 2 * SIZE}
    assert largest_row(tmp_path) < 20_000
    # The input, the doubled and published text, the signal and the result.
    assert len(payloads_in(place)) == 4


def test_workflow_is_replayed_with_its_values(store: base.Backend) -> None:
    engine = engines.load(framed.grow, {"text": "t" * SIZE}, backend=store)
    engine.park_after = 0.0
    engine.run()
    assert engine.storage.get_flow_state() == "SUSPENDED"
    detail = read_flow(store, engine.storage.flow_uuid)
    operations.signal(store, detail.uuid, "more", "m" * SIZE)
    again = engines.load_from_detail(detail, backend=store)
    again.run()
    assert again.storage.get("tests.support.framed.grow").endswith("m" + str(2 * SIZE))


def test_typed_signal_is_converted(store: base.Backend, place: Path) -> None:
    flow = linear_flow.Flow("f").add(
        task.WaitFor("note", type=framed.Note, provides="note"), framed.ReadNote("read")
    )
    engine = engines.load(flow, backend=store)
    engine.signal("note", {"text": "n" * SIZE})
    engine.run()
    assert engine.storage.fetch("length") == SIZE
    assert engine.storage.fetch("note") == framed.Note("n" * SIZE)


def test_submitted_flow_has_large_inputs_and_results(
    store: base.Backend, place: Path, tmp_path: Path
) -> None:
    handle = engines.submit(framed.take, inputs={"frame": b"x" * SIZE}, backend=store)
    assert largest_row(tmp_path) < 20_000
    detail = read_flow(store, handle.id)
    engines.load_from_detail(detail, backend=store).run()
    assert handle.result() == {"frame": b"x" * SIZE, "length": SIZE}
    assert [path.name.partition(".")[2] for path in place.glob("refs/*/*")] == [handle.id]


def test_fork_keeps_large_values_of_its_signals(store: base.Backend, place: Path) -> None:
    handle = engines.submit(framed.wait, backend=store)
    operations.signal(store, handle.id, "more", "m" * 100_000)
    engines.load_from_detail(read_flow(store, handle.id), backend=store).run()
    with store.get_connection() as connection:
        (sent,) = connection.signals([handle.id])[handle.id]
    assert type(sent.value) is Reference
    fork = operations.fork(store, handle.id, "sized", own=True).uuid
    assert [*place.glob(f"refs/*/{sent.value.address}.{fork}")]


def test_records_without_the_setting_name_it(store: base.Backend, tmp_path: Path) -> None:
    handle = engines.submit(framed.take, inputs={"frame": b"x" * SIZE}, backend=store)
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as other:
        detail = read_flow(other, handle.id)
        with pytest.raises(exceptions.PayloadUnavailable, match="WBENGINE_PAYLOADS"):
            engines.load_from_detail(detail, backend=other).run()
    assert handle.state == "PENDING", "a process with the setting can run it"


def test_values_stay_in_records_without_the_setting(tmp_path: Path) -> None:
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engines.run(framed.make(), backend=backend)
    assert largest_row(tmp_path) > SIZE


def test_environment_sets_the_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WBENGINE_PAYLOADS", str(tmp_path / "payloads"))
    with backends.backend(f"sqlite:///{tmp_path}/flows.db") as backend:
        engines.run(framed.make(), backend=backend)
    assert len(payloads_in(tmp_path / "payloads")) == 1
    assert largest_row(tmp_path) < 20_000


def test_flow_without_a_store_keeps_its_objects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WBENGINE_PAYLOADS", str(tmp_path / "payloads"))

    class MakeLock(task.Task):
        default_provides = "lock"

        def execute(self) -> Any:
            return [object(), b"x" * SIZE]

    values = engines.run(linear_flow.Flow("f").add(MakeLock("make")))
    assert type(values["lock"][0]) is object
    assert payloads_in(tmp_path / "payloads") == []
