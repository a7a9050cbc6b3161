"""Values out of line: written once, verified, compressed and bounded."""

from __future__ import annotations

import hashlib
import os
import pickle
import random
import stat
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import zstandard

from tests.support import key_files
from tests.support.buckets import FLOW, LARGE, random_bytes, reference_to
from tests.support.threads import call_in_threads
from wbengine import _payloads, exceptions
from wbengine._payloads import content, encryption
from wbengine._payloads import payloads as payloads_module
from wbengine._payloads.files import Files
from wbengine._payloads.payloads import (
    MAX_INLINE_BYTES,
    Payloads,
    condemned_name,
    damaged_name,
    data_name,
    reference_name,
)
from wbengine._security import keys
from wbengine.types import codec
from wbengine.types._references import Reference, checked


def raw(payloads: Payloads, reference: Reference) -> bytes:
    with payloads.files.read(data_name(reference.address)) as file:
        data: bytes = file.read()
        return data


def overwrite(payloads: Payloads, reference: Reference, data: bytes) -> None:
    payloads.files.write(data_name(reference.address), lambda: [data])


LARGE_VALUES: dict[str, Any] = {
    "bytes": random_bytes(LARGE),
    "text": "ä" * LARGE,
    "dict": {"frame": random_bytes(LARGE), "count": 3, ("a", 1): "x" * LARGE},
    "list": [random_bytes(LARGE), 1, None],
    "tuple": (1, random_bytes(LARGE)),
    "many small": [{"number": n, "text": "y" * 40} for n in range(4000)],
    "few medium": tuple("z" * 50_000 for _ in range(5)),
    "dict of small": {n: str(n) * 10 for n in range(20_000)},
}


@pytest.mark.parametrize("value", LARGE_VALUES.values(), ids=LARGE_VALUES)
def test_large_values_are_replaced_by_references_and_loaded_again(
    anywhere: Payloads, value: Any
) -> None:
    stored = anywhere.store_large(value, "result", FLOW)
    assert len(codec.dumps(stored)) <= MAX_INLINE_BYTES
    again = codec.loads(codec.dumps(stored))
    loaded = anywhere.load_all(again, "test")
    assert loaded == value
    assert type(loaded) is type(value)


@pytest.mark.parametrize("value", [None, 5, "x" * 1000, b"x", [1, 2], {"a": (1, 2)}, {1, 2}])
def test_small_values_stay(location: str, value: Any) -> None:
    assert Payloads(location).store_large(value, "result", FLOW) is value


def test_equal_values_are_written_once(location: str) -> None:
    payloads = Payloads(location)
    first = reference_to(payloads, random_bytes(LARGE))
    written = payloads.files.find(data_name(first.address))
    other = Payloads(location)
    assert other.store_large(random_bytes(LARGE), "result", "another-flow") == first
    assert payloads.files.find(data_name(first.address)) == written
    names = {file.name for file in payloads.files.list(f"refs/{first.address[:2]}")}
    assert names == {f"{first.address}.{FLOW}", f"{first.address}.another-flow"}


def test_address_is_the_digest_of_the_content(payloads: Payloads) -> None:
    reference = reference_to(payloads, "x" * LARGE)
    with payloads.files.read(data_name(reference.address)) as file:
        data = content.read(file, reference.size)
    assert hashlib.sha256(data).hexdigest() == reference.address


def test_address_of_a_signing_process_is_a_mac_that_another_key_refuses(
    payloads: Payloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.in_use(tmp_path / "keys.json", monkeypatch)
    reference = reference_to(payloads, "x" * LARGE)
    with payloads.files.read(data_name(reference.address)) as file:
        data = content.read(file, reference.size)
    assert hashlib.sha256(data).hexdigest() != reference.address
    assert payloads.load(reference, "test") == "x" * LARGE
    key_files.in_use(tmp_path / "others.json", monkeypatch)
    with pytest.raises(exceptions.PayloadUnavailable, match=r"key .* is unknown"):
        payloads.load(reference, "test")


def test_payload_of_a_rotated_key_is_readable(
    payloads: Payloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = keys.new()[keys.ANY]
    path = tmp_path / "keys.json"
    keys.write(path, old)
    monkeypatch.setenv(keys.VARIABLE, str(path))
    reference = reference_to(payloads, "x" * LARGE)
    new_secret = keys.new()[keys.ANY]["store"][0]
    rotated = {**old, "store": [{**old["store"][0], "until": 1.0}, new_secret]}
    path = tmp_path / "rotated.json"
    keys.write(path, rotated)
    monkeypatch.setenv(keys.VARIABLE, str(path))
    assert payloads.load(reference, "test") == "x" * LARGE
    assert reference_to(payloads, "x" * LARGE).key == new_secret["id"]


def test_compressible_payload_is_compressed_and_random_one_is_not(anywhere: Payloads) -> None:
    text, noise = reference_to(anywhere, "abc" * 10**6), reference_to(anywhere, random_bytes(10**6))
    assert len(raw(anywhere, text)) < text.size / 10
    assert noise.size < len(raw(anywhere, noise)) < noise.size + 64


def test_lost_payload_names_address_place_and_consumer(anywhere: Payloads) -> None:
    reference = reference_to(anywhere, random_bytes(LARGE))
    anywhere.files.delete(data_name(reference.address))
    with pytest.raises(exceptions.PayloadUnavailable) as caught:
        anywhere.load(reference, "argument 'frame' of 'Sum'")
    for part in (reference.address, str(anywhere), "argument 'frame' of 'Sum'", "is lost"):
        assert part in str(caught.value)


def test_written_again_after_a_loss(anywhere: Payloads) -> None:
    reference = reference_to(anywhere, random_bytes(LARGE))
    anywhere.files.delete(data_name(reference.address))
    assert reference_to(anywhere, random_bytes(LARGE)) == reference
    assert anywhere.load(reference, "test") == random_bytes(LARGE)


@pytest.mark.parametrize("compressible", [True, False])
@pytest.mark.parametrize("damage", ["truncate", "extend", "flip", "empty", "head"])
def test_damaged_payload_is_refused(payloads: Payloads, compressible: bool, damage: str) -> None:
    reference = reference_to(payloads, "abc" * LARGE if compressible else random_bytes(LARGE))
    data = raw(payloads, reference)
    middle = len(data) // 2
    damaged = {
        "truncate": data[:-1],
        "extend": data + b"\0",
        "flip": data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :],
        "empty": b"",
        "head": data[:9],
    }[damage]
    overwrite(payloads, reference, damaged)
    with pytest.raises(exceptions.PayloadUnavailable, match="is damaged"):
        payloads.load(reference, "test")


def test_damaged_payload_is_written_again_by_the_next_writer(location: str) -> None:
    payloads = Payloads(location)
    reference = reference_to(payloads, random_bytes(LARGE))
    good = raw(payloads, reference)
    overwrite(payloads, reference, good[:-1])
    with pytest.raises(exceptions.PayloadUnavailable, match="is damaged"):
        payloads.load(reference, "test")
    assert reference_to(Payloads(location), random_bytes(LARGE), "another-flow") == reference
    assert raw(payloads, reference) == good
    assert list(payloads.files.list("damaged")) == []


def test_empty_payload_is_written_again_without_a_reader(anywhere: Payloads) -> None:
    reference = reference_to(anywhere, random_bytes(LARGE))
    overwrite(anywhere, reference, b"")
    reference_to(anywhere, random_bytes(LARGE))
    assert anywhere.load(reference, "test") == random_bytes(LARGE)


def test_undamaged_payload_is_not_written_again(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference_to(payloads, random_bytes(LARGE))
    monkeypatch.setattr(content, "stored", None)
    reference_to(payloads, random_bytes(LARGE))


def test_repair_during_a_read_is_noticed(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_to(payloads, random_bytes(LARGE))
    good = raw(payloads, reference)
    overwrite(payloads, reference, good[:-1])
    retried = Files.retried

    def then_repaired(self: Files, name: str, read: Any) -> Any:
        try:
            return retried(self, name, read)
        finally:
            overwrite(payloads, reference, good)

    monkeypatch.setattr(Files, "retried", then_repaired)
    assert payloads.load(reference, "test") == random_bytes(LARGE)
    assert list(payloads.files.list("damaged")) == []


def test_reader_that_cannot_mark_a_damaged_payload_reports_it(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = reference_to(payloads, random_bytes(LARGE))
    overwrite(payloads, reference, b"x")

    def refused(self: Files, name: str, chunks: Any) -> None:
        raise PermissionError("read-only")

    monkeypatch.setattr(Files, "write", refused)
    with pytest.raises(exceptions.PayloadUnavailable, match="is damaged"):
        payloads.load(reference, "test")


def test_payload_without_its_key_is_not_marked_as_damaged(
    payloads: Payloads, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key_files.in_use(tmp_path / "keys.json", monkeypatch)
    reference = reference_to(payloads, "x" * LARGE)
    monkeypatch.delenv(keys.VARIABLE)
    with pytest.raises(exceptions.PayloadUnavailable, match=r"cannot be read: key .* is unknown"):
        payloads.load(reference, "test")
    assert payloads.files.find(damaged_name(reference.address)) is None


def test_other_content_under_an_address_is_refused(payloads: Payloads) -> None:
    one, two = reference_to(payloads, "a" * LARGE), reference_to(payloads, "b" * LARGE)
    overwrite(payloads, one, raw(payloads, two))
    with pytest.raises(exceptions.PayloadUnavailable, match="does not match its address"):
        payloads.load(one, "test")


@pytest.mark.slow
def test_decompression_is_bounded_by_the_size_of_the_reference(payloads: Payloads) -> None:
    reference = reference_to(payloads, "a" * LARGE)
    # 25 KB that decompress to 800 MB, as in a bomb. The head has the expected size.
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(800 * 2**20))
    overwrite(payloads, reference, raw(payloads, reference)[:17] + bomb)
    tracemalloc.start()
    with pytest.raises(exceptions.PayloadUnavailable, match="longer than its content"):
        payloads.load(reference, "test")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 40 * 2**20


def test_compressed_frame_without_its_size_is_read(payloads: Payloads) -> None:
    reference = reference_to(payloads, "a" * LARGE)
    with payloads.files.read(data_name(reference.address)) as file:
        data = bytes(content.read(file, reference.size))
    compressor = zstandard.ZstdCompressor(write_content_size=False)
    overwrite(payloads, reference, raw(payloads, reference)[:17] + compressor.compress(data))
    assert payloads.load(reference, "test") == "a" * LARGE


def test_payload_that_a_sweep_condemned_is_readable(anywhere: Payloads) -> None:
    reference = reference_to(anywhere, random_bytes(LARGE))
    assert anywhere.files.move(data_name(reference.address), condemned_name(reference.address))
    assert anywhere.load(reference, "test") == random_bytes(LARGE)


def test_reference_exists_before_its_payload(payloads: Payloads, monkeypatch: Any) -> None:
    events: list[str] = []
    find, write = Files.find, Files.write

    def noted(what: str, method: Any) -> Any:
        def call(self: Files, name: str, *rest: Any) -> Any:
            events.append(f"{what} {name.partition('/')[0]}")
            return method(self, name, *rest)

        return call

    monkeypatch.setattr(Files, "find", noted("find", find))
    monkeypatch.setattr(Files, "write", noted("write", write))
    reference_to(payloads, random_bytes(LARGE))
    assert events == ["write refs", "find data", "write data"]


def test_absence_is_not_remembered(bucket: str) -> None:
    reader, writer = Payloads(bucket), Payloads(bucket)
    name = data_name("ab" * 32)
    assert reader.files.find(name) is None
    assert list(reader.files.list("data/ab")) == []
    writer.files.write(name, lambda: [b"text"])
    assert [file.name for file in reader.files.list("data/ab")] == ["ab" * 32]
    found = reader.files.find(name)
    assert found is not None and found.size == 4


def test_failed_write_leaves_no_file(location: str) -> None:
    files = Payloads(location).files

    def broken() -> Any:
        yield b"x" * 2**20
        raise PermissionError("stop")

    with pytest.raises(PermissionError):
        files.write("data/aa/file", broken)
    assert files.find("data/aa/file") is None
    assert list(files.list("data/aa")) == []


def test_momentary_failures_are_retried(
    payloads: Payloads, monkeypatch: pytest.MonkeyPatch
) -> None:
    failures = [OSError("no route"), TimeoutError()]
    monkeypatch.setattr("wbengine._payloads.files.time.sleep", lambda seconds: None)
    write = Files._write_local

    def failing(self: Files, name: str, chunks: Any) -> None:
        if failures:
            raise failures.pop()
        write(self, name, chunks)

    monkeypatch.setattr(Files, "_write_local", failing)
    reference = reference_to(payloads, random_bytes(LARGE))
    assert payloads.load(reference, "test") == random_bytes(LARGE)
    failures += [OSError("no route")] * 5
    with pytest.raises(exceptions.StorageFailure, match=r"Writing refs/.* no route"):
        payloads.store_large(random_bytes(LARGE, 2), "result", FLOW)


def test_folder_is_private(tmp_path: Path) -> None:
    payloads = Payloads(str(tmp_path / "new" / "payloads"))
    reference_to(payloads, random_bytes(LARGE))
    for folder, folders, names in os.walk(tmp_path / "new" / "payloads"):
        for name in (*folders, *names):
            mode = stat.S_IMODE(os.stat(os.path.join(folder, name)).st_mode)
            assert mode in (0o700, 0o600)
            assert not name.startswith(".")


def test_concurrent_writers_write_one_payload(location: str) -> None:
    value, references = random_bytes(LARGE), list[Reference]()
    call_in_threads(lambda _: references.append(reference_to(Payloads(location), value)), range(8))
    assert len(references) == 8 and len(set(references)) == 1
    assert Payloads(location).load(references[0], "test") == value


def test_payloads_and_references_are_pickled(anywhere: Payloads) -> None:
    reference = reference_to(anywhere, random_bytes(LARGE))
    copies = pickle.loads(pickle.dumps((anywhere, reference)))
    assert copies[0].load(copies[1], "test") == random_bytes(LARGE)


@pytest.mark.parametrize(
    "parts",
    [
        {"v": "../../etc/passwd", "n": 1, "c": "x"},
        {"v": "s3://other/bucket", "n": 1, "c": "x"},
        {"v": "A" * 64, "n": 1, "c": "x"},
        {"v": "a" * 63, "n": 1, "c": "x"},
        {"v": "a" * 64 + "\n", "n": 1, "c": "x"},
        {"v": "a" * 64, "n": -1, "c": "x"},
        {"v": "a" * 64, "n": 2**50, "c": "x"},
        {"v": "a" * 64, "n": True, "c": "x"},
        {"v": "a" * 64, "n": 1, "c": "x" * 101},
        {"v": "a" * 64, "n": 1, "c": "x", "k": "../key"},
        {"v": "a" * 64, "n": 1, "c": "x", "u": "s3://other"},
        {"v": ["a"], "n": 1, "c": "x"},
    ],
)
def test_malformed_reference_is_refused(parts: dict[str, Any]) -> None:
    with pytest.raises(exceptions.InvalidFormat):
        codec.unpack_received({"$wbe": "payload", "k": "", **parts})


def test_references_stay_as_they_are(payloads: Payloads) -> None:
    reference = reference_to(payloads, random_bytes(LARGE))
    references = [reference] * 10_000
    assert payloads.store_large(references, "result", FLOW) is references
    mixed = [reference, "x" * LARGE]
    stored = payloads.store_large(mixed, "result", FLOW)
    assert stored[0] == reference and type(stored[1]) is Reference


def test_value_without_setting_is_refused_with_its_name() -> None:
    reference = checked("a" * 64, 1, "bytes")
    with pytest.raises(exceptions.PayloadUnavailable, match=r"--payloads or .WBENGINE_PAYLOADS"):
        _payloads.loaded(None, {"a": reference}, "argument 'a' of 'Sum'")


@pytest.mark.parametrize("location", ["", "  ", "nosuch://x/y", "s3://"])
def test_invalid_location_is_refused(location: str) -> None:
    with pytest.raises(ValueError):
        Files(location)


def test_secrets_of_the_location_are_masked() -> None:
    shown = str(Payloads("memory://user:sesame@host/x"))
    assert "sesame" not in shown


def test_reference_name_contains_no_part_of_the_value(payloads: Payloads) -> None:
    reference = reference_to(payloads, {"step[0]": "x"} | {str(n): "y" * 100 for n in range(2000)})
    assert reference_name(reference.address, FLOW).isascii()
    assert payloads.files.find(reference_name(reference.address, FLOW)) is not None


@pytest.mark.parametrize(
    "value",
    [b"x" * 300, {"a": [1, (2, 3), b"x"], "t": "text", 4: {1.5, None}}, list(range(100))],
    ids=["bytes", "nested", "list"],
)
def test_hostile_content_is_refused_without_another_exception(value: Any) -> None:
    chance = random.Random(3)
    original = b"".join(payloads_module._encode(value, "value").parts)
    assert payloads_module._decode(bytearray(original)) == value
    refused = 0
    for _ in range(3000):
        data = bytearray(original)
        for _ in range(chance.randrange(1, 5)):
            match chance.randrange(4):
                case 0:
                    data[chance.randrange(len(data))] = chance.randrange(256)
                case 1:
                    del data[chance.randrange(len(data)) :]
                case 2:
                    data += bytes(chance.randrange(200))
                case 3:
                    start = chance.randrange(len(data))
                    data[start : start + 8] = (2 ** chance.randrange(64)).to_bytes(8)
            data = data or bytearray(1)
        try:
            payloads_module._decode(data)
        except (ValueError, exceptions.InvalidFormat):
            refused += 1
    assert refused > 1000


@pytest.fixture
def key_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Key file that encrypts, in use."""
    return key_files.in_use(tmp_path / "encrypting.json", monkeypatch, encrypt=True)


@pytest.mark.parametrize("value", [random_bytes(9 * 2**20), "secret " * LARGE])
def test_encrypted_payload_is_read_with_the_key_only(
    payloads: Payloads, key_file: Path, monkeypatch: pytest.MonkeyPatch, value: Any
) -> None:
    reference = reference_to(payloads, value)
    data = raw(payloads, reference)
    assert b"wbpayl" not in data
    assert payloads.load(reference, "x") == value
    monkeypatch.delenv(keys.VARIABLE)
    with pytest.raises(exceptions.PayloadUnavailable, match="cannot be read: it is encrypted with"):
        payloads.load(reference, "x")
    assert payloads.files.find(damaged_name(reference.address)) is None


@pytest.mark.parametrize("change", ["flip", "cut", "swap", "append", "long frame"])
def test_changed_encrypted_payload_is_damaged(
    payloads: Payloads, key_file: Path, change: str
) -> None:
    reference = reference_to(payloads, random_bytes(9 * 2**20))
    other = reference_to(payloads, random_bytes(9 * 2**20, seed=2))
    data = bytearray(raw(payloads, reference))
    if change == "flip":
        data[len(data) // 2] ^= 1
    elif change == "cut":
        del data[5 * 2**20 :]
    elif change == "append":
        data += b"x"
    elif change == "long frame":
        data[33:37] = b"\x7f\xff\xff\xff"
    else:
        data = bytearray(raw(payloads, other))
    overwrite(payloads, reference, bytes(data))
    with pytest.raises(exceptions.PayloadUnavailable, match="is damaged"):
        payloads.load(reference, "x")


def test_payloads_are_encrypted_again_with_a_new_key(
    payloads: Payloads, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    value = random_bytes(LARGE)
    reference = reference_to(payloads, value)
    folder = f"data/{reference.address[:2]}"
    assert list(encryption.reencrypt(payloads.files, folder)) == [False]
    rotated = keys.rotated({keys.ANY: keys.read(key_file)}, 1.0, 2.0, 1.0)
    new = keys.rotated(rotated, 3.0, 4.0, 3.0)[keys.ANY]
    new["encrypt"] = new["encrypt"][1:]  # without the key of the address
    files = {"all": rotated[keys.ANY], "new": new}
    for name, content_of_file in files.items():
        keys.write(key_file.with_name(f"{name}.json"), content_of_file)
    monkeypatch.setenv(keys.VARIABLE, str(key_file.with_name("all.json")))
    assert list(encryption.reencrypt(payloads.files, folder)) == [True]
    assert list(encryption.reencrypt(payloads.files, folder)) == [False]
    assert payloads.load(reference, "x") == value
    monkeypatch.setenv(keys.VARIABLE, str(key_file.with_name("new.json")))
    assert payloads.load(reference, "x") == value


def test_new_folders_survive_a_power_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry of a folder is durable when its parent was synced."""
    fsync, synced = os.fsync, set[int]()

    def noting(descriptor: int) -> None:
        synced.add(os.fstat(descriptor).st_ino)
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", noting)
    place = tmp_path / "shared" / "payloads"
    reference = reference_to(Payloads(str(place)), random_bytes(LARGE))
    prefix = reference.address[:2]
    folders = [tmp_path, place.parent, place, place / "data", place / "data" / prefix]
    assert {folder.stat().st_ino for folder in folders} <= synced
