"""Records: copies, conversion to data, attempts, items and merging."""

from __future__ import annotations

import copy
import fractions
import json
import pickle
import uuid
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given

from tests.contract import records
from wbengine import states
from wbengine.persistence import _step_notes, base, models
from wbengine.persistence.backends import _memory
from wbengine.types import failure as ft

FAILURE = ft.Failure.from_exception(ValueError("no"))


@pytest.fixture
def record() -> models.TaskDetail:
    return models.TaskDetail("t")


@pytest.mark.slow
@given(records.atoms())
def test_record_survives_dict_copy_and_pickle_round_trips(record: models.AtomDetail) -> None:
    """Each copy is equal to the record and independent of it."""
    expected = records.of_atom(record)
    described = type(record).from_dict(record.to_dict())
    if record.items is not None and described.items is not None:  # items are stored separately
        for item in record.items:
            described.items.put(models.ItemDetail.from_dict(item.to_dict()))
    for again in (described, record.copy(), pickle.loads(pickle.dumps(record))):
        assert type(again) is type(record)
        assert records.of_atom(again) == expected
        again.meta["new"] = 1
        assert "new" not in record.meta


class Growing(dict[str, int]):
    """Dict that grows during iteration, as if another thread added to it."""

    def items(self) -> Any:
        found = super().items()
        for item in list(found):
            self[f"n{len(self)}"] = 1
            yield item


def test_record_is_copied_while_its_meta_grows() -> None:
    flow = models.FlowDetail("f")
    flow.meta = Growing(a=1)
    other = flow.copy()
    assert type(other.meta) is dict and other.meta["a"] == 1


def test_record_copy_shares_no_mutable_values(record: models.TaskDetail) -> None:
    record.put(states.SUCCESS, {"list": [1]})
    copy = record.copy()
    copy.results["list"].append(2)
    assert record.results == {"list": [1]}


def test_uuids_are_random_version_4() -> None:
    """They are generated in batches, in the form of `uuid.uuid4`."""
    found = models.new_uuids(500)
    assert len(set(found)) == 500
    for text in found:
        parsed = uuid.UUID(text)
        assert (str(parsed), parsed.version, parsed.variant) == (text, 4, uuid.RFC_4122)


def test_meta_is_created_on_first_access(record: models.TaskDetail) -> None:
    assert not record.has_meta
    assert record.meta is record.meta


PROGRESS = {"progress": 0.5, "progress_details": {"at_progress": 0.5, "details": {"step": 1}}}


def set_items(record: models.TaskDetail) -> None:
    for key, value in PROGRESS.items():
        record.meta[key] = value


def set_defaults(record: models.TaskDetail) -> None:
    meta = record.meta
    for key, value in PROGRESS.items():
        assert meta.setdefault(key, value) == value


def merge(record: models.TaskDetail) -> None:
    meta = record.meta
    meta |= PROGRESS
    assert meta is record.meta


def assign(record: models.TaskDetail) -> None:
    record.meta = {"mine": 1, **PROGRESS}


@pytest.mark.parametrize(
    "write",
    [set_items, set_defaults, merge, assign, lambda record: record.meta.update(**PROGRESS)],
    ids=["set-items", "set-defaults", "merge", "assign", "update"],
)
def test_progress_written_to_the_meta_of_a_task_is_kept(
    write: Any, record: models.TaskDetail
) -> None:
    record.meta["mine"] = 1
    write(record)
    dumped = json.loads(json.dumps(record.dump(typed=True)))
    for each in (record, record.copy(), models.TaskDetail.load(dumped, typed=True)):
        assert (each.progress, each.progress_details) == tuple(PROGRESS.values())
        assert each.meta == {"mine": 1, **PROGRESS}
    record.state, record.progress = states.SUCCESS, None  # as the engine does
    assert record.meta["progress"] == 1.0


def test_progress_accepts_any_real_number(record: models.TaskDetail) -> None:
    record.meta["progress"] = fractions.Fraction(1, 4)
    assert record.meta == {"progress": 0.25, "progress_details": None}
    assert type(record.progress) is float


def test_progress_in_dict_of_record_is_loaded() -> None:
    record = models.TaskDetail.from_dict({"name": "t", "uuid": "u", "meta": dict(PROGRESS)})
    assert record.progress == 0.5 and record.meta == PROGRESS


@pytest.mark.parametrize(
    "wrong",
    ["half", float("nan"), float("inf"), 10**400, [1]],
    ids=["str", "nan", "infinity", "huge-int", "list"],
)
def test_progress_that_is_not_a_finite_number_is_rejected(
    wrong: Any, record: models.TaskDetail
) -> None:
    record.meta.update(PROGRESS)
    with pytest.raises((TypeError, ValueError), match="progress of 't' must be"):
        record.meta.update(more=1, progress=wrong)
    with pytest.raises((TypeError, ValueError), match="progress of 't' must be"):
        record.meta = {"progress": wrong}
    assert record.meta == PROGRESS and record.progress == 0.5


def test_meta_assigned_from_another_task_is_independent() -> None:
    one, other = models.TaskDetail("one"), models.TaskDetail("other")
    one.meta.update(PROGRESS)
    other.meta = one.meta
    other.meta["progress"] = 0.7
    assert (one.progress, other.progress) == (0.5, 0.7)
    assert other.meta == {**PROGRESS, "progress": 0.7}
    for copied in (copy.copy(one.meta), copy.deepcopy(one.meta)):
        assert type(copied) is dict and copied == PROGRESS


RECORDED: dict[str, tuple[list[tuple[str, Any]], dict[str, Any]]] = {
    "success": ([("SUCCESS", 1)], {"results": 1}),
    "success-failure": ([("SUCCESS", 1), ("FAILURE", FAILURE)], {"failure": FAILURE}),
    "failure-success": ([("FAILURE", FAILURE), ("SUCCESS", 1)], {"results": 1}),
    "failure-reverted": (
        [("FAILURE", FAILURE), ("REVERTED", 2)],
        {"failure": FAILURE, "revert_results": 2},
    ),
    "success-reverted": ([("SUCCESS", 1), ("REVERTED", 2)], {"revert_results": 2}),
    "success-revert-failure": (
        [("SUCCESS", 1), ("REVERT_FAILURE", FAILURE)],
        {"results": 1, "revert_failure": FAILURE},
    ),
}


@pytest.mark.parametrize(("steps", "left"), RECORDED.values(), ids=RECORDED)
def test_task_record_keeps_results_and_failures_of_each_state(
    steps: list[tuple[str, Any]], left: dict[str, Any], record: models.TaskDetail
) -> None:
    """FAILURE clears the results; REVERTED keeps the failure and the result of the reversion."""
    for state, result in steps:
        record.put(state, result)
    names = ("results", "failure", "revert_results", "revert_failure")
    assert {n: getattr(record, n) for n in names if getattr(record, n) is not None} == left
    record.attempt = 4
    record.reset(states.PENDING)
    assert [getattr(record, name) for name in names] == [None] * 4
    assert (record.state, record.intention, record.attempt) == ("PENDING", "EXECUTE", 4)


def test_retry_record_keeps_history_until_reverted() -> None:
    """Each success adds an entry, failures are added to the last entry, a reversion clears all."""
    record = models.RetryDetail("r")
    assert (record.last_results, record.last_failures) == (None, {})
    record.put(states.SUCCESS, 1)
    record.last_failures["t"] = FAILURE
    record.put(states.SUCCESS, 2)
    record.put(states.FAILURE, FAILURE)
    assert record.results == [(1, {"t": FAILURE}), (2, {})]
    record.put(states.REVERTED, None)
    assert record.results == []


@pytest.mark.parametrize("kind", [models.TaskDetail, models.RetryDetail])
def test_copies_have_every_field(kind: type[models.AtomDetail]) -> None:
    record = kind("a")
    for number, slot in enumerate(models.AtomDetail.__slots__):
        setattr(record, slot, number)
    record.results, record.items = [], models.Items(3, "ab", 2)
    record.meta["k"] = 1
    for copied in (record.copy(), kind("b").update(record), kind("c").update_row(record)):
        told = {slot: getattr(copied, slot) for slot in models.AtomDetail.__slots__}
        items, _ = told.pop("items"), told.pop("results")
        assert told == {slot: getattr(record, slot) for slot in told}
        assert (items.attempt, items.resumed, copied.meta_value("k")) == (3, 2, 1)
        copied.meta["k"] = 2
    assert record.meta_value("k") == 1


def test_last_attempt_describes_the_current_attempt(record: models.TaskDetail) -> None:
    assert record.last_attempt is None
    record.attempt, record.worker = 2, "w"
    assert record.last_attempt == models.Attempt(2, "execute", "w", None, None)


def begin(record: models.AtomDetail, action: str = "execute") -> None:
    """Start the next attempt in the way of an engine."""
    record.archive_attempt()
    record.attempt += 1
    record.action, record.worker, record.started, record.ended = action, "w", None, None


def told(record: models.AtomDetail) -> list[tuple[int, str, str | None, str | None]]:
    return [(each.attempt, each.action, each.state, each.error) for each in record.all_attempts]


def test_record_keeps_past_attempts_with_result(record: models.TaskDetail) -> None:
    """The results of attempts are kept after the record was reset."""
    begin(record)
    assert told(record) == [(1, "execute", None, None)]
    record.put(states.FAILURE, ft.Failure.from_exception(ValueError(f"no\n  way {'x' * 500}")))
    short = f"ValueError: no way {'x' * 500}"[:197] + "..."
    assert told(record) == [(1, "execute", "FAILURE", short)] and len(short) == 200
    begin(record, "revert")
    record.state = states.REVERTING
    assert told(record)[1:] == [(2, "revert", None, None)]
    record.put(states.REVERTED, None)
    record.reset(states.PENDING)
    record.reset(states.PENDING)
    ended = [(1, "execute", "FAILURE", short), (2, "revert", "REVERTED", None)]
    assert told(record) == ended
    again = models.TaskDetail.from_dict(json.loads(json.dumps(record.to_dict())))
    assert told(again) == told(record.copy()) == told(pickle.loads(pickle.dumps(record))) == ended
    begin(record)
    assert told(record) == [*ended, (3, "execute", None, None)]
    record.put(states.SUCCESS, 1)
    assert told(record)[-1] == (3, "execute", "SUCCESS", None)


def test_new_attempt_has_no_state_before_its_result_is_stored(record: models.TaskDetail) -> None:
    """The record still has the state of the previous attempt."""
    begin(record)
    record.put(states.SUCCESS, 1)
    begin(record, "revert")
    assert told(record) == [(1, "execute", "SUCCESS", None), (2, "revert", None, None)]
    record.put(states.REVERT_FAILURE, FAILURE)
    assert told(record)[-1] == (2, "revert", "REVERT_FAILURE", "ValueError: no")


def test_record_keeps_last_attempts_and_counts_dropped_ones(record: models.TaskDetail) -> None:
    for _ in range(31):
        begin(record)
    assert [attempt.attempt for attempt in record.all_attempts] == list(range(11, 32))
    assert record.attempts_dropped == 10
    assert models.TaskDetail("other").past is models.TaskDetail("t").past


def test_retrying_controller_attempt_counts_as_success() -> None:
    record = models.RetryDetail("r")
    begin(record)
    record.ended = 1.0
    record.put(states.SUCCESS, 1)
    record.state = states.RETRYING
    assert told(record) == [(1, "execute", "SUCCESS", None)]


def test_flow_record_keeps_latest_state_changes() -> None:
    """The reason is shortened to one line, and the error belongs to the current state."""
    flow = models.FlowDetail("f")
    assert (flow.history, flow.error) == ((), None)
    for number in range(60):
        flow.enter(states.RUNNING, float(number))
    flow.enter(states.FAILURE, 60.0, "it\n  broke " + "x" * 300)
    assert len(flow.history) == 50 and flow.history[0].at == 11.0
    assert flow.error == ("it broke " + "x" * 300)[:197] + "..."
    again = models.FlowDetail.from_dict(json.loads(json.dumps(flow.to_dict())))
    assert (again.history, again.error, again.created) == (flow.history, flow.error, flow.created)
    flow.enter(states.RUNNING, 61.0, "again")
    assert flow.error is None


def test_merge_adds_updates_and_keeps_own_records() -> None:
    book = models.LogBook("b")
    flow = models.FlowDetail("f")
    book.add(flow)
    flow.add(models.TaskDetail("mine"))
    flow.meta["mine"] = 1
    shared = models.TaskDetail("shared")
    flow.add(shared)

    theirs = book.copy()
    other = theirs.find(flow.uuid)
    assert other is not None
    other.state = states.RUNNING
    other.meta = {"theirs": 2}
    found = other.find(shared.uuid)
    assert found is not None
    found.put(states.SUCCESS, 7)
    other.add(models.TaskDetail("fresh"))

    book.merge(theirs, deep_copy=True)
    assert flow.state == states.RUNNING
    assert flow.meta == {"mine": 1, "theirs": 2}
    assert shared.results == 7
    assert [atom.name for atom in flow] == ["mine", "shared", "fresh"]


def test_pformat_and_repr_contain_names_and_states() -> None:
    book, flow, atom = models.LogBook("b"), models.FlowDetail("f"), models.TaskDetail("t")
    book.add(flow)
    flow.add(atom)
    atom.put(states.FAILURE, FAILURE)
    assert all(word in book.pformat() for word in ("'b'", "'f'", "'t'", "FAILURE", "ValueError"))
    assert "'t' FAILURE" in repr(atom)
    assert models.LogBook.from_dict(book.to_dict()).to_dict() == book.to_dict()
    assert models.FlowDetail.from_dict(flow.to_dict()).to_dict() == flow.to_dict()


def test_map_items_survive_dict_copy_and_pickle_round_trips() -> None:
    """The row of the atom contains the attempt; each item is converted separately."""
    record = models.TaskDetail("m")
    record.items = models.Items(3, [[1], "b"], resumed=2)
    record.items[0].order = 1
    record.items[0].put(states.SUCCESS, [2])
    record.items[1].put(states.FAILURE, FAILURE)
    for again in (
        models.TaskDetail.from_dict(record.to_dict()),
        record.copy(retain_contents=False),
    ):
        assert again.items is not None and len(again.items) == 0
        assert (again.items.attempt, again.items.resumed) == (3, 2)
        for item in record.items:
            again.items.put(models.ItemDetail.from_dict(item.to_dict()))
        assert [i.to_dict() for i in again.items] == [i.to_dict() for i in record.items]
    for again in (record.copy(), pickle.loads(pickle.dumps(record))):
        assert again.items is not None
        assert [i.to_dict() for i in again.items] == [i.to_dict() for i in record.items]
        again.items[0].results.append(3)
    assert record.items[0].results == [2]
    assert models.RetryDetail("r").to_dict()["items"] is None


def test_items_accept_only_next_or_existing_index_of_the_attempt() -> None:
    """Items of other attempts are ignored."""
    items = models.Items(2)
    items.put(models.ItemDetail(0, "a", 2))
    items.put(models.ItemDetail(0, "b", 2))
    items.put(models.ItemDetail(1, "old", 1))
    assert [item.value for item in items] == ["b"]
    with pytest.raises(ValueError, match="must be at most 1, got 4"):
        items.put(models.ItemDetail(4, "c", 2))


def test_merge_copies_map_items_of_other_flow() -> None:
    """The flows share no values."""
    mine = models.FlowDetail("f")
    record = models.TaskDetail("m")
    record.items = models.Items(1, ["a"])
    mine.add(record)
    theirs = mine.copy()
    found = theirs.find(record.uuid)
    assert found is not None and found.items is not None
    found.items[0].put(states.SUCCESS, 7)
    assert record.items[0].state == states.PENDING
    mine.merge(theirs, deep_copy=True)
    assert record.items is not None and record.items[0].results == 7
    found.items[0].put(states.REVERTED, 8)
    assert record.items[0].state == states.SUCCESS


def test_logbook_update_copies_fields_but_not_flows() -> None:
    """Times are converted to text on request."""
    theirs = models.LogBook("b")
    theirs.meta["k"] = [1]
    theirs.updated_at = theirs.created_at
    theirs.add(models.FlowDetail("f"))
    mine = models.LogBook("a", theirs.uuid).update(theirs)
    assert mine.to_dict() == theirs.to_dict() and len(mine) == 0
    mine.meta["more"] = 1
    assert "more" not in theirs.meta
    told = json.loads(json.dumps(theirs.to_dict(marshal_time=True)))
    again = models.LogBook.from_dict(told, unmarshal_time=True)
    assert again.to_dict() == theirs.to_dict()
    fresh = models.LogBook.from_dict(models.LogBook("c").to_dict(True), unmarshal_time=True)
    assert fresh.updated_at is None


PICTURE = """\
  LogBook: 'b'
    - uuid = 1
    - created_at = 2020-01-02T00:00:00+00:00
    - meta:
      + who = 'Ada'
    FlowDetail: 'f'
      - uuid = 2
      - state = FAILURE
      TaskDetail: 't'
        - uuid = 3
        - state = FAILURE, intention = REVERT, version = 1.0
        - attempt = 2 (execute on w, 1.500 s)
        - progress = 25.00%
        - failure = Failure: ValueError: no
        - meta:
          + k = 'v'
      TaskDetail: 'm'
        - uuid = 4
        - state = SUCCESS, intention = EXECUTE, version = None
        - results = 'xxxxxxxxxxxx...
        - items = 2 (1 PENDING, 1 SUCCESS)
      RetryDetail: 'r'
        - uuid = 5
        - state = RETRYING, intention = EXECUTE, version = None
        - try 1 = 'a'
          + t: Failure: ValueError: no
        - try 2 = <Broken: repr() raised RuntimeError>"""


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def test_pformat_shows_all_fields_and_shortens_long_values() -> None:
    """A value whose `repr` raises is shown with the exception."""
    book, flow = models.LogBook("b", "1"), models.FlowDetail("f", "2")
    book.created_at = datetime(2020, 1, 2, tzinfo=UTC)
    book.meta["who"] = "Ada"
    flow.state = states.FAILURE
    book.add(flow)
    failed, fanned = models.TaskDetail("t", "3"), models.TaskDetail("m", "4")
    failed.put(states.FAILURE, FAILURE)
    failed.intention, failed.version, failed.attempt = states.REVERT, "1.0", 2
    failed.worker, failed.started, failed.ended, failed.progress = "w", 1.0, 2.5, 0.25
    failed.meta["k"] = "v"
    fanned.put(states.SUCCESS, "x" * 1000)
    fanned.items = models.Items(1, ["a", "b"])
    fanned.items[1].put(states.SUCCESS, 1)
    again = models.RetryDetail("r", "5")
    again.state = states.RETRYING
    again.results = [("a", {"t": FAILURE}), (Broken(), {})]
    flow.add_all([failed, fanned, again])
    lines = [line if len(line) < 80 else f"{line[:33]}..." for line in book.pformat(2).split("\n")]
    assert "\n".join(lines) == PICTURE
    assert max(map(len, book.pformat().split("\n"))) < 250
    assert book.pformat(2, linesep="\r\n").count("\r\n") == PICTURE.count("\n")


@pytest.mark.parametrize("kind", [models.TaskDetail, models.RetryDetail])
def test_record_without_submitted_field_is_loaded(
    kind: type[models.AtomDetail],
) -> None:
    told = kind("a").to_dict()
    told.update(attempt=1, worker="w", started=2.0, ended=5.0)
    del told["submitted"]
    attempt = kind.from_dict(told).last_attempt
    assert attempt == models.Attempt(1, "execute", "w", 2.0, 5.0) and attempt.submitted is None
    assert attempt.runtime == 3.0


def test_runtime_is_never_negative() -> None:
    """The clock may be set back between start and end."""
    assert models.Attempt(1, "execute", "w", 5.0, 2.0).runtime == 0.0
    assert models.Attempt(1, "execute", "w", 5.0, None).runtime is None
    item = models.ItemDetail(0, None, 1)
    assert item.runtime is None
    item.started, item.ended = 1.0, 1.5
    assert item.runtime == 0.5


@pytest.mark.parametrize("deep", [None, False, True])
def test_merge_shares_values_unless_they_are_copied(deep: bool | None) -> None:
    value = {"key": [1]}
    source, target = models.FlowDetail("f", "u"), models.FlowDetail("f", "u")
    source.meta = {"value": value}
    target.merge(source) if deep is None else target.merge(source, deep)
    assert target.meta["value"] == value
    assert (target.meta["value"] is value) is not (deep or False)


def test_stored_record_omits_incidents_unless_there_are_any() -> None:
    record = models.TaskDetail("t", "u")
    assert "incidents" not in record.to_dict()
    record.add_incident(models.Incident(states.RESENT, 1.0, 1))
    assert models.TaskDetail.from_dict(record.to_dict()).incidents == record.incidents


def test_step_note_keeps_the_arguments_of_the_revert() -> None:
    record = models.TaskDetail("t", "u")
    note = _step_notes.StepNote("w", 1, 0, "m:f", "d", arguments={"key": 1})
    record.set_meta_value(models.STEP, note.to_dict())
    assert _step_notes.StepNote.of(record) == note


def test_memory_store_keeps_logs_of_the_latest_attempts() -> None:
    stored = _memory.StoredFlow(models.FlowDetail("f"), models.LogBook("b"), 1)
    last = base.LOGGED_ATTEMPTS + 3
    stored.add_logs(models.LogChunk("atom", attempt, -1, ()) for attempt in range(1, last + 1))
    kept = [chunk.attempt for _, chunk in stored.logs["atom"]]
    assert kept == list(range(last - base.LOGGED_ATTEMPTS + 1, last + 1))
