"""The bytes of the directory backend: what was written is read, anything else is refused."""

from __future__ import annotations

import io
import zlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wbengine.persistence import leases
from wbengine.persistence.backends.directory import head, lines, rows

TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)
#: Lines of records, and the epoch of their turn.
TURNS = st.lists(st.tuples(st.integers(0, 9), st.lists(TREES, max_size=4)), max_size=5)


def written(turns: list[tuple[int, list[object]]]) -> list[bytes]:
    """The first line of a journal, and its turns."""
    found = [lines.write("journal", b"f", 7, tree={})]
    for epoch, trees in turns:
        members = [lines.write("task", b"a", n, n, tree) for n, tree in enumerate(trees)]
        found.append(lines.turn(epoch, members))
    return found


def scan(data: bytes) -> lines.Scan:
    return lines.scan(io.BytesIO(data).readlines(), "journal", b"f", 7)


@given(TURNS)
def test_what_was_written_is_read(turns: list[tuple[int, list[object]]]) -> None:
    data = b"".join(written(turns))
    found = scan(data)
    assert (found.problem, found.end, found.within) == (None, len(data), False)
    assert [line.tree() for line in found.lines] == [tree for _, trees in turns for tree in trees]
    assert found.epoch == max((epoch for epoch, _ in turns), default=0)


@settings(max_examples=30)
@given(TURNS)
def test_a_cut_journal_is_a_beginning_of_it(turns: list[tuple[int, list[object]]]) -> None:
    """Of whole turns, wherever it is cut."""
    parts = written(turns)
    data = b"".join(parts)
    ends, counts, at, count = [0], [0], 0, 0
    for part, (_, trees) in zip(parts, [(0, []), *turns], strict=True):
        at, count = at + len(part), count + len(trees)
        ends.append(at)
        counts.append(count)
    for cut in range(len(data) + 1):
        found = scan(data[:cut])
        whole = sum(end <= cut for end in ends) - 1
        assert (found.end, len(found.lines)) == (ends[whole], counts[whole])
        assert (found.problem is None) == (cut == ends[whole])
        assert not found.within


@given(st.binary(max_size=80), st.booleans())
def test_anything_may_be_read(data: bytes, begins: bool) -> None:
    """Nothing is raised, and nothing is found that was not written."""
    first = lines.write("journal", b"f", 7, tree={})
    found = scan(first + data if begins else data)
    assert found.lines == [] and found.end in (0, len(first))


@pytest.mark.parametrize(
    "first",
    [
        lines.write("journal", b"f", 8, tree={}),
        lines.write("journal", b"g", 7, tree={}),
        lines.write("records", b"f", 7, tree={}),
    ],
)
def test_the_file_of_another_is_refused(first: bytes) -> None:
    found = scan(first + lines.turn(1, [lines.write("flow", tree={})]))
    assert found.lines == [] and "not the 'journal' of f, number 7" in str(found.problem)


def test_a_newer_format_is_told() -> None:
    rest = b'2 journal f 7 0 {"more": true}'
    with pytest.raises(lines.Damaged, match="of format 2: a newer wbengine wrote it"):
        lines.read(b"%08x %s\n" % (zlib.crc32(rest), rest))


@pytest.mark.parametrize("rest", [b"", b"1", b"1 a b c d {}", b"x journal f 7 0 {}"])
def test_a_line_of_another_form_is_refused(rest: bytes) -> None:
    with pytest.raises(lines.Damaged, match="form"):
        lines.read(b"%08x %s\n" % (zlib.crc32(rest), rest))


def test_a_line_that_is_no_json_is_refused() -> None:
    rest = b"1 flow - 0 0 {"
    with pytest.raises(lines.Damaged, match="'flow' is no JSON"):
        lines.read(b"%08x %s\n" % (zlib.crc32(rest), rest)).tree()


@pytest.mark.parametrize(
    "uuid", ["..", ".", "", "a/b", "a\0b", "A", "ä", "\ud800", "a b", "x" * 101, "-x", "a\n"]
)
def test_any_uuid_has_a_name(uuid: str) -> None:
    """One that a folder may have, and no other uuid has; a name is its own name."""
    name = lines.file_name(uuid)
    assert name != uuid and len(name) < 100 and set(name) <= set("0123456789abcdefx-")
    assert lines.file_name(name) == name != lines.file_name(uuid + "1")


def test_a_usual_uuid_is_its_own_name() -> None:
    assert lines.file_name("0b2c-4f_9") == "0b2c-4f_9"


# -- heads -----------------------------------------------------------------------------------------

ROW = rows.Row("f", "Ä name", "b", "RUNNING", 1.5, "no \N{FOX FACE}", "beef", True, 77)
HEAD = head.Head(head.Holder(3, "me", 12.5, True), head.Mark(4, 567), ROW)


def test_a_head_is_read_as_it_was_written() -> None:
    data = HEAD.raw(b"f")
    assert len(data) == head.SIZE
    assert head.parse(data, b"f") == HEAD
    longer = HEAD._replace(mark=head.Mark(4, 999))
    assert longer.raw_after(data, b"f") == longer.raw(b"f")


def test_a_damaged_head_is_refused_or_read_right() -> None:
    """Whatever byte of it is changed, wherever it is cut; lists may hear nothing of it."""
    data = HEAD.raw(b"f")
    refused = untold = 0
    bare = HEAD._replace(row=None)
    for at in range(len(data)):
        for change in (1, 0x20, 0x80):
            spoilt = data[:at] + bytes([data[at] ^ change]) + data[at + 1 :]
            try:
                found = head.parse(spoilt, b"f")
                assert found in (HEAD, bare)
                untold += found == bare
            except lines.Damaged:
                refused += 1
        if at < head.LEAST:
            with pytest.raises(lines.Damaged):
                head.parse(data[:at], b"f")
        else:
            assert head.parse(data[:at], b"f") in (HEAD, bare)
    assert head.parse(data[: head.LEAST], b"f") == bare
    assert refused > 300 and untold > 200
    with pytest.raises(lines.Damaged, match="not the 'lease' of g"):
        head.parse(data, b"g")


def test_what_a_list_tells_counts_with_its_mark_only() -> None:
    """An older writer, or a power failure, leaves it as it was; and a generation ends it."""
    data = HEAD.raw(b"f")
    for mark in (head.Mark(4, 568), head.Mark(5, 567)):
        later = HEAD._replace(mark=mark).raw(b"f")
        assert head.parse(later[: head.LEAST] + data[head.LEAST :], b"f").row is None
        assert head.parse(later, b"f").row == ROW


@pytest.mark.parametrize(
    ("name", "error", "kept"),
    [(40, "é" * 200, 200), (400, "\x00" * 200, 60), (700, "é" * 200, None)],
)
def test_a_row_that_is_too_long(name: int, error: str, kept: int | None) -> None:
    """Has a shorter error, or none."""
    row = ROW._replace(name="n" * name, error=error)
    told = HEAD._replace(row=row).raw(b"f")
    assert len(told) == head.SIZE
    cut = None if kept is None else error[:kept]
    assert head.parse(told, b"f").row == row._replace(error=cut)


def test_a_row_of_a_very_long_name_is_none() -> None:
    long = HEAD._replace(row=ROW._replace(name="n" * 2000))
    assert len(long.raw(b"f")) == head.SIZE
    assert head.parse(long.raw(b"f"), b"f") == HEAD._replace(row=None)


def test_a_long_name_of_an_owner_is_cut() -> None:
    """Its lease is known nevertheless, and told from that of another."""
    owner = "ä" * 3000
    told = head.Head(head.Holder(3, owner, 1e9, True), head.Mark(1))
    found = head.parse(told.raw(b"f"), b"f").holder
    assert owner.startswith(found.owner) and len(found.owner) > 100
    assert found.is_of(leases.Lease("f", owner, 3))
    assert not found.is_of(leases.Lease("f", owner, 4))
    assert not found.is_of(leases.Lease("f", "other", 3))
