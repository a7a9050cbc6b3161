"""Deletion of payloads to which no flow refers."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from tests.support.buckets import LARGE, random_bytes, reference_to
from wbengine._payloads import sweeping
from wbengine._payloads.files import Files
from wbengine._payloads.payloads import Payloads, condemned_name, damaged_name, data_name
from wbengine.types._references import Reference

DAY = 24 * 3600.0


def swept(payloads: Payloads, flows: set[str], later: float = 0.0, **options: Any) -> Any:
    options.setdefault("grace", sweeping.GRACE_SECONDS)
    now = time.time() + later
    result = list(sweeping.sweep(payloads, flows.intersection, now, **options))[-1]
    assert result.parts == result.parts_done
    return result


def stored(payloads: Payloads, flow: str, seed: int) -> Reference:
    reference = payloads.store_large(random_bytes(LARGE, seed), "result", flow)
    assert type(reference) is Reference
    return reference


def exists(payloads: Payloads, reference: Reference) -> bool:
    return payloads.files.find(data_name(reference.address)) is not None


def test_payload_of_a_deleted_flow_is_deleted_after_the_grace_period(anywhere: Payloads) -> None:
    old, kept = stored(anywhere, "a", 1), stored(anywhere, "b", 2)
    assert swept(anywhere, {"b"}, DAY / 2).deleted == 0
    assert exists(anywhere, old)
    result = swept(anywhere, {"b"}, 2 * DAY)
    assert (result.deleted, result.kept, result.references_deleted) == (1, 1, 1)
    assert (exists(anywhere, old), exists(anywhere, kept)) == (False, True)
    assert result.bytes_deleted > LARGE
    assert swept(anywhere, {"b"}, 2 * DAY).deleted == 0


def test_payload_that_two_flows_share_lives_as_long_as_the_last_one(anywhere: Payloads) -> None:
    reference = stored(anywhere, "a", 1)
    assert stored(anywhere, "b", 1) == reference
    swept(anywhere, {"b"}, 2 * DAY)
    assert exists(anywhere, reference)
    swept(anywhere, set(), 2 * DAY)
    assert not exists(anywhere, reference)


def test_dry_run_deletes_nothing(anywhere: Payloads) -> None:
    reference = stored(anywhere, "a", 1)
    result = swept(anywhere, set(), 2 * DAY, dry_run=True)
    assert (result.deleted, result.references_deleted) == (1, 1)
    assert exists(anywhere, reference)
    assert swept(anywhere, set(), 2 * DAY).deleted == 1


def test_payload_without_a_reference_is_deleted(payloads: Payloads) -> None:
    # A writer may have been killed at any time.
    reference = stored(payloads, "a", 1)
    payloads.files.delete(f"refs/{reference.address[:2]}/{reference.address}.a")
    assert swept(payloads, {"a"}, 2 * DAY).deleted == 1


def test_sweep_reads_no_payload(payloads: Payloads, monkeypatch: pytest.MonkeyPatch) -> None:
    stored(payloads, "a", 1)
    monkeypatch.setattr(Files, "read", None)
    assert swept(payloads, set(), 2 * DAY).deleted == 1


def test_writer_between_the_listing_and_the_deletion_keeps_the_payload(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads, writer = Payloads(location), Payloads(location)
    reference = stored(payloads, "a", 1)
    move = Files.move

    def moved(self: Files, name: str, new_name: str) -> bool:
        if new_name.startswith("condemned"):  # The writer finds the payload.
            assert stored(writer, "b", 1) == reference
        return move(self, name, new_name)

    monkeypatch.setattr(Files, "move", moved)
    assert swept(payloads, set(), grace=0).deleted == 0
    assert writer.load(reference, "test") == random_bytes(LARGE, 1)


def test_writer_after_the_condemnation_writes_the_payload_again(
    location: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    payloads, writer = Payloads(location), Payloads(location)
    reference = stored(payloads, "a", 1)
    delete = Files.delete

    def deleted(self: Files, name: str) -> None:
        if name.startswith("condemned"):
            assert stored(writer, "b", 1) == reference
        delete(self, name)

    monkeypatch.setattr(Files, "delete", deleted)
    swept(payloads, set(), grace=0)
    assert writer.load(reference, "test") == random_bytes(LARGE, 1)


def test_interrupted_sweep_is_completed_by_the_next_one(payloads: Payloads) -> None:
    needed, orphan = stored(payloads, "a", 1), stored(payloads, "b", 2)
    for reference in (needed, orphan):
        payloads.files.move(data_name(reference.address), condemned_name(reference.address))
    payloads.files.delete(f"refs/{orphan.address[:2]}/{orphan.address}.b")
    swept(payloads, {"a"})
    assert exists(payloads, needed) and not exists(payloads, orphan)
    assert list(payloads.files.list("condemned")) == []


@pytest.mark.slow
def test_concurrent_sweeps_and_writers_lose_nothing(tmp_path: Path) -> None:
    location, flows = str(tmp_path), set[str]()
    stop, errors = threading.Event(), list[BaseException]()

    def sweep() -> None:
        payloads = Payloads(location)
        while not stop.is_set():
            try:
                swept(payloads, flows, grace=0)
            except BaseException as error:
                errors.append(error)
                return

    sweepers = [threading.Thread(target=sweep) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    payloads = Payloads(location)
    for number in range(60):
        flow = f"flow-{number}"
        flows.add(flow)  # Before the first payload, as a stored flow.
        reference = stored(payloads, flow, number % 3)
        assert payloads.load(reference, "test") == random_bytes(LARGE, number % 3)
        flows.discard(flow)
    stop.set()
    for sweeper in sweepers:
        sweeper.join()
    assert not errors
    swept(payloads, set(), grace=0)
    assert swept(payloads, set(), grace=0).kept == 0


def test_large_values_of_reference(payloads: Payloads) -> None:
    reference = reference_to(payloads, random_bytes(LARGE))
    assert reference.kind == f"bytes, {LARGE:,} items"
    frame = pd.DataFrame({"number": range(LARGE)})
    assert reference_to(payloads, frame).kind == f"DataFrame, {LARGE:,} rows"


def test_files_of_killed_writers_are_deleted_after_the_grace_period(tmp_path: Path) -> None:
    payloads = Payloads(str(tmp_path))
    reference = stored(payloads, "a", 1)
    prefix = reference.address[:2]
    left = [tmp_path / folder / prefix / f".{reference.address}.1" for folder in ("data", "refs")]
    for path in left:
        path.write_bytes(b"x")
    swept(payloads, {"a"}, DAY / 2)
    swept(payloads, {"a"}, 2 * DAY, dry_run=True)
    assert all(path.exists() for path in left)
    swept(payloads, {"a"}, 2 * DAY)
    assert not any(path.exists() for path in left)
    assert exists(payloads, reference)


def test_reference_that_is_written_again_during_a_sweep_is_kept(tmp_path: Path) -> None:
    payloads = Payloads(str(tmp_path))
    reference = stored(payloads, "a", 1)
    for path in tmp_path.glob("*/*/*"):
        os.utime(path, (time.time() - 10 * DAY,) * 2)

    def none_exists_after_a_writer(flows: Collection[str]) -> set[str]:
        stored(payloads, "a", 1)
        return set()

    list(sweeping.sweep(payloads, none_exists_after_a_writer, time.time()))
    assert exists(payloads, reference)


def test_reference_from_another_flow_is_kept_for_this_one(anywhere: Payloads) -> None:
    reference = stored(anywhere, "a", 1)
    anywhere.store_each({"big": reference}, "inputs", "b")
    swept(anywhere, {"b"}, 2 * DAY)
    assert exists(anywhere, reference)


def test_mark_of_a_damaged_payload_is_deleted_after_the_payload(anywhere: Payloads) -> None:
    needed, orphan = stored(anywhere, "a", 1), stored(anywhere, "b", 2)
    for reference in (needed, orphan):
        anywhere.files.write(damaged_name(reference.address), tuple)
    for _ in range(2):
        swept(anywhere, {"a"}, 2 * DAY)
    assert [file.name for file in anywhere.files.list("damaged")] == [needed.address]


def test_store_is_asked_once_for_all_references_with_the_same_first_digits(tmp_path: Path) -> None:
    payloads, asked = Payloads(str(tmp_path)), list[set[str]]()
    for flow in "abc":
        stored(payloads, flow, 1)

    def existing(flows: Collection[str]) -> set[str]:
        asked.append(set(flows))
        return {"a"}

    result = list(sweeping.sweep(payloads, existing, time.time()))[-1]
    assert asked == [{"a", "b", "c"}]
    assert (result.kept, result.young) == (1, 0)


def test_kept_payloads_are_in_use_or_young(payloads: Payloads) -> None:
    stored(payloads, "a", 1), stored(payloads, "b", 2)
    result = swept(payloads, {"b"})
    assert (result.kept, result.young) == (2, 1)
    assert LARGE < result.bytes_young < result.bytes_kept
