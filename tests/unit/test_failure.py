"""Failures: text, reraising, comparison, stored exceptions and serialization."""

from __future__ import annotations

import copy
import gc
import json
import pickle
import re
import sys
import traceback
import weakref

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wbengine import exceptions
from wbengine.types import _failure_text, codec
from wbengine.types import failure as module
from wbengine.types.failure import Failure


class Plain(Exception):
    pass


class Demanding(Exception):
    """Exception that cannot be created again from its arguments."""

    __slots__ = ("slotted",)

    def __init__(self, code: int, detail: object) -> None:
        super().__init__(f"code {code}")
        self.code = code
        self.detail = detail
        self.slotted = code + 1


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")

    __repr__ = __str__


def captured(message: str = "Woot!", kind: type[BaseException] = RuntimeError) -> Failure:
    try:
        raise kind(message)
    except BaseException:
        return Failure()


def described(failure: Failure) -> Failure:
    """Return a copy of the failure that was serialized and read again."""
    return Failure.from_dict(failure.to_dict())


def raise_many(messages: list[str]) -> None:
    error = RuntimeError(messages[0])
    if messages[1:]:
        try:
            raise_many(messages[1:])
        except RuntimeError as cause:
            raise error from cause
    raise error


@pytest.fixture
def chained() -> Failure:
    try:
        raise_many(["top", "middle", "bottom"])
    except RuntimeError:
        return Failure()
    raise AssertionError


BOTH = pytest.mark.parametrize("make", [captured, lambda: described(captured())])


@BOTH
def test_failure_exposes_message_types_and_traceback(make):
    failure = make()
    assert failure.exception_str == "Woot!"
    assert list(failure) == ["RuntimeError", "Exception"]
    assert str(failure) == failure.pformat() == "Failure: RuntimeError: Woot!"
    assert failure.exception_args == ("Woot!",)
    assert "Traceback" not in failure.pformat()
    assert "Traceback (most recent call last):\n  File" in failure.pformat(traceback=True)
    assert "raise kind(message)" in failure.traceback_str
    assert failure.traceback_str.startswith(f'  File "{__file__}", line ')


@BOTH
def test_check_accepts_classes_and_names(make):
    failure = make()
    assert failure.check(RuntimeError) is RuntimeError
    assert failure.check(ValueError, "Exception") == "Exception"
    assert failure.check(ValueError, "ValueError") is None
    assert failure.check() is None


def test_names_of_custom_exceptions_are_qualified():
    failure = captured(kind=Plain)
    assert list(failure) == [f"{__name__}.Plain", "Exception"]
    assert failure.check(f"{__name__}.Plain", Plain) == f"{__name__}.Plain"
    assert failure.check("Plain") is None


def test_exception_and_exc_info_are_none_after_from_dict():
    failure = captured()
    assert isinstance(failure.exception, RuntimeError)
    kind, value, tb = failure.exc_info
    assert kind is RuntimeError and value is failure.exception and tb is not None
    assert described(failure).exception is None
    assert described(failure).exc_info is None


def test_failure_from_parts_keeps_the_given_exception_and_has_no_cause():
    error = Plain("x")
    failure = Failure((Plain, error, None), exception_str="x", exc_type_names=["Plain"])
    assert failure.exception is error
    assert failure.has_implicit_cause is False


def test_all_constructors_create_equal_failures():
    try:
        raise Plain("x")
    except Plain as error:
        made = [
            Failure(),
            Failure.capture(),
            Failure(sys.exc_info()),
            Failure.from_exception(error),
        ]
    assert all(failure == made[0] for failure in made)


def test_failure_of_exception_never_raised_has_no_traceback():
    failure = Failure.from_exception(RuntimeError("Woot!"))
    assert failure.traceback_str == ""
    assert failure.pformat(traceback=True).endswith("Traceback not available.")


def test_invalid_constructor_arguments_are_rejected():
    with pytest.raises(TypeError, match="can only capture an exception"):
        Failure()
    with pytest.raises(ValueError, match="three items"):
        Failure((RuntimeError, RuntimeError("x")))
    with pytest.raises(TypeError, match=r"unexpected keyword argument\(s\): hi"):
        Failure(exception_str="x", traceback_str=None, exc_type_names=["Exception"], hi="hi")
    with pytest.raises(TypeError, match="exception_str"):
        Failure(exc_type_names=["Exception"])


def test_failure_without_type_names_shows_only_message():
    failure = Failure(exception_str="Woot!", traceback_str="", exc_type_names=[])
    assert list(failure) == []
    assert failure.pformat() == "Failure: Woot!"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt, GeneratorExit])
def test_any_base_exception_is_captured(kind):
    failure = captured("3", kind)
    assert list(failure)[-1] == "BaseException"
    Failure.validate(failure.to_dict())
    with pytest.raises(kind, match="3"):
        failure.reraise()


def test_exception_with_broken_str_is_captured():
    failure = captured("x", Mute)
    assert "str() raised RuntimeError" in str(failure)
    assert repr(failure) and failure.pformat(traceback=True)
    assert described(failure).matches(failure)
    assert failure == failure.copy()
    assert pickle.loads(pickle.dumps(failure)).matches(failure)


# Raising.


def test_reraise_keeps_traceback_lines():
    failure = captured()
    with pytest.raises(RuntimeError, match=r"^Woot!$") as caught:
        failure.reraise()
    lines = "".join(traceback.format_exception(caught.value))
    assert "raise kind(message)" in lines
    assert "in captured" in lines


def test_failure_from_dict_reraises_wrapped_failure():
    failure = described(captured())
    with pytest.raises(exceptions.WrappedFailure) as caught:
        failure.reraise()
    assert list(caught.value) == [failure]
    assert caught.value.check(RuntimeError) is RuntimeError


def test_reraise_if_any_raises_single_or_wrapped_failure():
    assert Failure.reraise_if_any([]) is None
    assert Failure.reraise_if_any(iter(())) is None
    with pytest.raises(RuntimeError, match="one"):
        Failure.reraise_if_any(iter([captured("one")]))
    several = [captured("one"), captured("two")]
    with pytest.raises(exceptions.WrappedFailure) as caught:
        Failure.reraise_if_any(several)
    assert list(caught.value) == several


def test_repeated_reraise_does_not_extend_traceback():
    failure = captured()
    text = failure.traceback_str
    for _ in range(3):
        with pytest.raises(RuntimeError) as caught:
            failure.reraise()
        assert len(traceback.extract_tb(caught.value.__traceback__)) == 3
    assert failure.exception.__traceback__ is None
    assert failure.traceback_str == text


# Stored exceptions.


class Local:
    pass


def fail_with_locals(watch: list[weakref.ref[Local]], outer: type[Exception]) -> None:
    deep = Local()
    watch.append(weakref.ref(deep))
    try:
        inner = Local()
        watch.append(weakref.ref(inner))
        int("not a number")
    except ValueError as error:
        raise outer("outer") from error


@pytest.mark.parametrize("how", ["capture", "reraise", "pickle", "exc_info"])
def test_failure_releases_local_variables(how):
    watch: list[weakref.ref[Local]] = []
    try:
        fail_with_locals(watch, Plain)
    except Plain:
        failure = Failure()
    if how == "reraise":
        with pytest.raises(Plain):
            failure.reraise()
    elif how == "pickle":
        pickle.dumps(failure)
    elif how == "exc_info":
        assert failure.exc_info[2] is not None
    gc.collect()
    assert [ref() for ref in watch] == [None, None]
    assert len(failure.causes) == 1


@pytest.mark.parametrize("how_many", [1, 2], ids=["one", "several"])
def test_reraised_failure_releases_locals_of_the_catcher(how_many):
    # The file name is new, so that no cached information about the code exists.
    name = f"<place {how_many}>"
    try:
        exec(compile("def fail():\n    raise RuntimeError\nfail()", name, "exec"), {})
    except RuntimeError:
        failures = [Failure()] * how_many

    def catcher() -> weakref.ref[Local]:
        mine = Local()
        try:
            Failure.reraise_if_any(failures)
        except (RuntimeError, exceptions.WrappedFailure):
            return weakref.ref(mine)
        raise AssertionError

    gc.disable()
    try:
        assert catcher()() is None  # without garbage collection, which may run late or never
    finally:
        gc.enable()


def test_captured_exception_is_not_modified():
    try:
        try:
            raise_many(["top", "bottom"])
        except RuntimeError as caught:
            error = caught
            frames = traceback.extract_tb(error.__traceback__)
            cause = error.__cause__
            failure = Failure()
            assert failure.exception is not error
            assert traceback.extract_tb(error.__traceback__) == frames
            assert error.__cause__ is cause and cause.__traceback__ is not None
            raise
    except RuntimeError as again:
        assert again is error
        assert len(traceback.extract_tb(again.__traceback__)) >= len(frames)


EXCEPTIONS = [
    Plain("a", 1),
    Plain(),
    KeyError("k"),
    OSError(2, "no such", "file"),
    OSError("bare"),
    OSError(2, "no such", "file", None, "other"),
    TimeoutError(),
    UnicodeDecodeError("utf-8", b"x", 0, 1, "why"),
    SystemExit(3),
    SystemExit(),
    StopIteration(5),
    SyntaxError("bad", ("f", 1, 2, "text")),
    ImportError("x", name="n", path="p"),
    AttributeError("a", name="n"),
    NameError("a", name="n"),
    ExceptionGroup("g", [ValueError(1), Plain(2)]),
    Demanding(3, object()),
    json.JSONDecodeError("m", "doc", 1),
    exceptions.MissingDependencies("a", ["b"]),
    exceptions.WrappedFailure([]),
]
FIELDS = [
    "code", "detail", "slotted", "errno", "strerror", "filename", "filename2", "encoding",
    "object", "start", "end", "reason", "value", "msg", "lineno", "offset", "text", "name",
    "path", "message", "missing_requirements", "doc", "pos",
]  # fmt: skip


@pytest.mark.parametrize("error", EXCEPTIONS, ids=lambda error: type(error).__name__)
def test_stored_exception_is_an_equal_copy(error):
    error.extra = ["extra"]
    kept = Failure.from_exception(error).exception
    assert type(kept) is type(error)
    assert kept is not error
    assert repr(kept) == repr(error) and str(kept) == str(error)
    assert repr(kept.args) == repr(error.args)
    assert kept.extra is error.extra
    for field in FIELDS:
        assert getattr(kept, field, "none") == getattr(error, field, "none"), field


def test_exception_that_cannot_be_copied_is_stored_itself():
    class Singular(Exception):
        def __new__(cls, *args):
            return super().__new__(cls, *args)

        def __getattribute__(self, name):
            if name == "__dict__":
                raise RuntimeError("hands off")
            return super().__getattribute__(name)

    error = Singular("x")
    assert Failure.from_exception(error).exception is error


def test_exception_group_releases_locals_of_members():
    watch: list[weakref.ref[Local]] = []
    try:
        fail_with_locals(watch, Plain)
    except Plain as error:
        group = ExceptionGroup("g", [error])
    failure = Failure.from_exception(group)
    del group
    gc.collect()
    assert [ref() for ref in watch] == [None, None]
    assert str(failure.exception.exceptions[0]) == "outer"


def test_exceptions_in_attributes_release_locals():
    watch: list[weakref.ref[Local]] = []
    try:
        try:
            fail_with_locals(watch, Plain)
        except Plain as inner:
            error = Demanding(1, inner)
            error.args = (inner, "text")
            raise error from inner
    except Demanding:
        failure = Failure()
    del error
    gc.collect()
    assert [ref() for ref in watch] == [None, None]
    kept = failure.exception
    assert kept.detail is kept.args[0] is kept.__cause__
    assert str(kept.detail) == "outer"


def test_exceptions_that_reference_each_other_are_captured():
    one, two = Plain(), Plain()
    one.args, two.args = (two, one), (one,)
    one.other = two
    assert isinstance(Failure.from_exception(one).exception.args[0], Plain)


def test_deep_traceback_is_truncated_in_the_middle():
    def down() -> None:
        down()

    try:
        down()
    except RecursionError:
        failure = Failure()
    assert "more calls" in failure.traceback_str
    assert len(failure.traceback_str) < 20_000
    with pytest.raises(RecursionError):
        failure.reraise()


# Causes.


@pytest.mark.parametrize(
    "way", [lambda f: f, described, lambda f: pickle.loads(pickle.dumps(f)), copy.copy]
)
def test_causes_are_ordered_nearest_first(chained, way):
    failure = way(chained)
    assert [cause.exception_str for cause in failure.causes] == ["middle", "bottom"]
    middle, bottom = failure.causes
    assert middle.causes == (bottom,) and bottom.causes == ()
    assert "raise_many" in bottom.traceback_str
    assert failure.matches(chained)


def test_context_is_a_cause_unless_suppressed():
    error = Plain("second")
    error.__context__ = ValueError("first")
    (cause,) = Failure.from_exception(error).causes
    assert cause.exception_str == "first"
    error.__suppress_context__ = True  # by "raise ... from None"
    failure = Failure.from_exception(error)
    assert failure.causes == ()
    assert failure.exception.__suppress_context__


def test_circular_causes_are_listed_once():
    one, two = Plain("one"), Plain("two")
    one.__cause__, two.__cause__ = two, one
    failure = Failure.from_exception(one)
    assert [cause.exception_str for cause in failure.causes] == ["two"]
    for again in (described(failure), pickle.loads(pickle.dumps(failure)), failure.copy()):
        assert again.matches(failure)
    with pytest.raises(Plain, match="one"):
        failure.reraise()


def test_long_chain_of_causes_is_truncated():
    error = Plain("0")
    for number in range(1, 10_000):
        following = Plain(str(number))
        following.__context__ = error
        error = following
    failure = Failure.from_exception(error)
    assert len(failure.causes) == 99
    data = failure.to_dict()
    assert len(json.dumps(data)) < 100_000
    Failure.validate(data)
    assert Failure.from_dict(data).matches(failure)
    assert pickle.loads(pickle.dumps(failure)).matches(failure)


def test_exception_of_unhashable_class_is_captured():
    class Unhashable(type):
        __hash__ = None

    class Odd(Plain, metaclass=Unhashable):
        pass

    failure = captured("odd", Odd)
    assert failure.exception_str == "odd"
    names = list(failure)
    assert (
        names[0].endswith("Odd") and names[1].endswith("Plain") and names[-1].endswith("Exception")
    )
    assert described(failure).matches(failure)


# Groups, notes and attributes.


def member() -> Exception:
    """Return an exception with a cause and a note that was raised."""
    try:
        try:
            raise KeyError("row-3")
        except KeyError as error:
            error.add_note("sheet 2")
            raise ValueError("no row") from error
    except ValueError as error:
        error.add_note("table 7")
        return error


@pytest.fixture
def grouped() -> Failure:
    try:
        raise ExceptionGroup("outer", [member(), ExceptionGroup("inner", [OSError(5, "disk")])])
    except ExceptionGroup as error:
        error.add_note("batch 9")
        return Failure()


def shape(failure: Failure) -> list[object]:
    return [
        next(iter(failure)),
        failure.exception_str,
        failure.notes,
        [shape(part) for part in failure.causes],
        [shape(part) for part in failure.members],
    ]


WAYS = pytest.mark.parametrize(
    "way",
    [lambda f: f, described, lambda f: pickle.loads(pickle.dumps(f)), Failure.copy],
    ids=["captured", "described", "pickled", "copied"],
)


@WAYS
def test_failure_has_members_causes_and_notes(grouped, way):
    failure = way(grouped)
    assert failure.matches(grouped)
    assert shape(failure) == [
        "ExceptionGroup",
        "outer (2 sub-exceptions)",
        ("batch 9",),
        [],
        [
            ["ValueError", "no row", ("table 7",), [
                ["KeyError", "'row-3'", ("sheet 2",), [], []]], []],
            ["ExceptionGroup", "inner (1 sub-exception)", (), [], [
                ["OSError", "[Errno 5] disk", (), [], []]]],
        ],
    ]  # fmt: skip
    text = failure.pformat(traceback=True)
    for words in ("batch 9", "no row", "table 7", "'row-3'", "sheet 2", "[Errno 5] disk"):
        assert words in text
    assert "raise KeyError" in text and "batch 9" not in failure.pformat()


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data.pop("notes"),
        lambda data: data.pop("members"),
        lambda data: data["members"].pop(),
        lambda data: data["members"][0].pop("causes"),
        lambda data: data["members"][0].pop("notes"),
    ],
)
def test_failures_with_different_notes_or_members_do_not_match(grouped, change):
    data = grouped.to_json()
    change(data)
    assert not Failure.from_dict(data).matches(grouped)


@pytest.mark.parametrize("pickled", [False, True])
def test_raised_members_and_causes_have_tracebacks(grouped, pickled):
    failure = pickle.loads(pickle.dumps(grouped)) if pickled else grouped
    with pytest.raises(ExceptionGroup) as caught:
        failure.reraise()
    for text in (
        "".join(traceback.format_exception(caught.value)),
        "".join(traceback.format_exception(*failure.exc_info)),
    ):
        assert 'raise KeyError("row-3")' in text and "raise ValueError" in text
        assert "sheet 2" in text
    assert caught.value.exceptions[0].__cause__.args == ("row-3",)


def test_notes_of_captured_and_raised_exceptions_are_separate():
    error = Plain("x")
    error.add_note("first")
    failure = Failure.from_exception(error)
    error.add_note("later")
    with pytest.raises(Plain) as caught:
        failure.reraise()
    caught.value.add_note("of the catcher")
    with pytest.raises(Plain) as again:
        failure.reraise()
    assert failure.notes == tuple(again.value.__notes__) == ("first",)


MESSAGES = st.sampled_from(["", "one", "two\nlines", "blank\n\nline"])
PLAIN_ERRORS = st.builds(
    lambda kind, text: kind(text), st.sampled_from([ValueError, Plain]), MESSAGES
)


@st.composite
def chains(draw: st.DrawFn, inner: st.SearchStrategy[Exception]) -> Exception:
    error = draw(
        st.builds(ExceptionGroup, MESSAGES, st.lists(inner, min_size=1, max_size=20)) | inner
    )
    for note in draw(st.lists(MESSAGES, max_size=2)):
        error.add_note(note)
    if error.__context__ is None:
        following = draw(st.none() | inner)
        error.__context__ = following
        if draw(st.booleans()):
            error.__cause__ = following
    return error


@given(st.recursive(PLAIN_ERRORS, chains, max_leaves=25))
def test_text_is_that_of_python(error):
    python = "".join(traceback.format_exception(error))
    for failure in (Failure.from_exception(error), described(Failure.from_exception(error))):
        assert f"{_failure_text.text_of(failure)}\n" == python


def test_text_of_raised_group_is_that_of_python(grouped):
    try:
        grouped.reraise()
    except ExceptionGroup as error:
        failure, python = Failure(), "".join(traceback.format_exception(error))
    without_carets = re.sub(r"^[ |]*[~^]+\n", "", python, flags=re.MULTILINE)
    assert f"{_failure_text.text_of(failure)}\n" == without_carets


def test_text_of_wide_and_deep_groups_is_limited_as_in_python():
    wide = ExceptionGroup("wide", [ValueError(number) for number in range(17)])
    deep: Exception = ValueError("deep")
    for number in range(10):
        deep = ExceptionGroup(str(number), [deep])
    for error in (wide, deep):
        failure = Failure.from_exception(error)
        assert f"{_failure_text.text_of(failure)}\n" == "".join(traceback.format_exception(error))


def test_number_and_depth_of_members_are_limited():
    wide = ExceptionGroup("wide", [ValueError(number) for number in range(1000)])
    failure = Failure.from_exception(ExceptionGroup("many", [wide, *[wide] * 5000]))
    assert len(failure.members) == 2 and len(failure.members[0].members) == 99
    assert failure.members[0].members[-1].exception_str == "902 more exceptions were omitted"
    assert failure.members[1].exception_str == "5000 more exceptions were omitted"
    deep: Exception = ValueError("deep")
    for _ in range(50):
        deep = ExceptionGroup("deep", [deep])
    nested = Failure.from_exception(deep)
    for _ in range(10):
        (nested,) = nested.members
    assert nested.members == ()
    for limited in (failure, Failure.from_exception(deep)):
        assert described(limited).matches(limited)
        assert codec.loads(codec.dumps(limited)).matches(limited)


def test_shorten_limits_notes_and_attributes_of_all_members():
    error = OSError(2, "no")
    for note in ("a" * 40_000, "b" * 40_000, *["c"] * 30_000):
        error.add_note(note)
    data = Failure.from_exception(ExceptionGroup("g", [ExceptionGroup("h", [error])])).to_json()
    data["members"][0]["members"][0]["exc_attributes"]["path"] = "f" * 70_000
    module.shorten(data)
    (part,) = data["members"][0]["members"]
    notes = part["notes"]
    assert len(notes) == 3 and notes[0] == "a" * 40_000
    assert notes[1].endswith("b... (40000 characters)") and notes[2] == "(30000 more notes)"
    assert part["exc_attributes"] == {}
    assert len(json.dumps(data)) < 80_000


def test_shorten_accepts_lone_surrogates_in_attributes():
    data = Failure.from_dict({**SEED, "exc_attributes": {"msg": "\ud800"}}).to_json()
    module.shorten(data)
    assert data["exc_attributes"] == {"msg": "\ud800"}


def test_hostile_members_are_validated_and_limited():
    data = dict(SEED)
    for _ in range(10_000):
        data = {**SEED, "members": [data], "causes": [SEED]}
    Failure.validate(data)
    failure = Failure.from_dict(data)
    for _ in range(10):
        (failure,) = failure.members
    assert failure.members == ()
    data["members"][0]["members"][0]["notes"] = [7]
    with pytest.raises(exceptions.InvalidFormat, match="notes"):
        Failure.validate(data)
    wide = Failure.from_dict({**SEED, "members": [{**SEED, "causes": [SEED] * 150}] * 1000})
    assert len(wide.members[0].causes) == 100
    assert wide.members[-1].exception_str.endswith("more exceptions were omitted")
    assert sum(1 for _ in module._all_failures(wide)) <= 210


def test_next_release_may_add_parts():
    assert Failure.from_dict({**SEED, "future": [1]}).matches(Failure.from_dict(SEED))


# Comparing.


def test_failures_compare_by_content():
    assert captured() == captured()
    assert captured() != captured("w00t!")
    assert captured() != captured(kind=ValueError)
    assert captured() is not None and captured() != "Failure"
    assert not captured().matches(None)
    with pytest.raises(TypeError):
        hash(captured())


def test_failure_from_dict_matches_but_is_not_equal():
    failure = captured()
    other = described(failure)
    assert other != failure and failure != other
    assert other.matches(failure) and failure.matches(other)
    assert other == described(failure) and not other.matches(described(captured("w00t")))


def test_copies_are_equal(chained):
    for make in (Failure.copy, copy.copy, copy.deepcopy):
        again = make(chained)
        assert again is not chained
        assert again == chained and again.matches(chained)


# Serialization.


def test_to_dict_has_format_of_version_1(chained):
    data = chained.to_dict()
    assert set(data) == {
        "exception_str", "traceback_str", "exc_type_names", "version", "exc_args", "causes",
    }  # fmt: skip
    assert data["version"] == 1
    assert data["exc_type_names"] == ["RuntimeError", "Exception"]
    assert [cause["exception_str"] for cause in data["causes"]] == ["middle", "bottom"]
    assert not any("causes" in cause for cause in data["causes"])
    assert "causes" not in captured().to_dict()


def test_to_dict_contains_arguments_only_if_requested_and_plain():
    assert captured().to_dict()["exc_args"] == ("Woot!",)
    assert captured().to_dict(include_args=False)["exc_args"] == ()
    for odd in (object(), (1,), b"x", float("nan"), {1: 2}, "\ud800", float("inf")):
        data = Failure.from_exception(Plain("text", odd)).to_dict()
        assert data["exc_args"] == ()
        json.dumps(data, allow_nan=False).encode("utf-8")


def test_to_dict_omits_unencodable_arguments_of_causes():
    error = Plain("top")
    error.__cause__ = Plain(object())
    data = Failure.from_exception(error).to_dict()
    json.dumps(data)
    assert data["exc_args"] and data["causes"][0]["exc_args"] == ()


def test_to_dict_omits_self_referencing_arguments():
    endless: list[object] = []
    endless.append(endless)
    assert Failure.from_exception(Plain(endless)).to_dict()["exc_args"] == ()


@pytest.mark.slow
@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
                    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))  # fmt: skip
def test_arguments_survive_json_or_are_omitted(value):
    data = Failure.from_exception(Plain(value)).to_dict()
    arrived = json.loads(json.dumps(data, allow_nan=False).encode("utf-8", "strict"))
    Failure.validate(arrived)
    args = Failure.from_dict(arrived).exception_args
    assert args in ((value,), ())


@given(st.text(), st.lists(st.text(), max_size=4))
def test_to_dict_survives_json(message, causes):
    error: BaseException = Plain(message)
    top = error
    for text in causes:
        error.__cause__ = ValueError(text)
        error = error.__cause__
    failure = Failure.from_exception(top)
    again = Failure.from_dict(json.loads(json.dumps(failure.to_dict())))
    assert len(again.causes) == len(causes)
    assert again.to_dict() == failure.to_dict()


def test_lone_surrogates_are_escaped_in_to_dict():
    data = Failure.from_exception(Plain("bad \udcff name")).to_dict()
    json.dumps(data, ensure_ascii=False).encode("utf-8")
    assert data["exception_str"] == "bad \\udcff name"


SEED = {
    "exc_type_names": ["RuntimeError", "StandardError", "Exception"],
    "exception_str": "Woot!",
    "traceback_str": '  File "x.py", line 56, in f\n    result = task.execute(**arguments)\n',
    "version": 1,
}


def test_from_dict_reads_failures_of_taskflow():
    Failure.validate(SEED)
    failure = Failure.from_dict(SEED)
    assert failure.check("StandardError") == "StandardError"
    assert failure.traceback_str == SEED["traceback_str"]
    bottom = {**SEED, "exception_str": "bottom"}
    middle = {**SEED, "exception_str": "middle", "causes": [bottom]}
    for causes in ([middle, bottom], [middle]):  # the flat form of TaskFlow, and the nested form
        data = {**SEED, "causes": causes}
        Failure.validate(data)
        failure = Failure.from_dict(data)
        assert [cause.exception_str for cause in failure.causes] == ["middle", "bottom"]
        assert [cause.exception_str for cause in failure.causes[0].causes] == ["bottom"]


def test_from_dict_refuses_other_versions():
    with pytest.raises(ValueError, match="must be 1, got 2"):
        Failure.from_dict({**SEED, "version": 2})
    with pytest.raises(ValueError, match="must be 1, got None"):
        Failure.from_dict({key: value for key, value in SEED.items() if key != "version"})


INVALID_FIELDS = {
    "message": ({"exception_str": 3}, r"failure\['exception_str'\]"),
    "no-types": ({"exc_type_names": []}, r"failure\['exc_type_names'\]"),
    "unknown-base": ({"exc_type_names": ["Exception", "Fake"]}, "must end in"),
    "types-str": ({"exc_type_names": "Exception"}, "exc_type_names"),
    "empty-cause": ({"causes": [{}]}, r"failure\['causes'\]\[0\]"),
    "version-of-cause": (
        {"causes": [SEED, {**SEED, "version": "1"}]},
        r"\['causes'\]\[1\]\['version'\]",
    ),
    "causes-dict": ({"causes": {}}, "causes"),
    "args-dict": ({"exc_args": {}}, "exc_args"),
    "attributes-list": ({"exc_attributes": []}, "exc_attributes"),
    "attribute-list": ({"exc_attributes": {"errno": [2]}}, "exc_attributes"),
    "notes-str": ({"notes": "note"}, "notes"),
    "empty-member": ({"members": [SEED, {}]}, r"failure\['members'\]\[1\]"),
    "empty-cause-of-member": (
        {"members": [{**SEED, "causes": [{}]}]},
        r"\['members'\]\[0\]\['causes'\]\[0\]",
    ),
    "implicit-int": ({"has_implicit_cause": 1}, "has_implicit_cause"),
}


@pytest.mark.parametrize(("change", "where"), INVALID_FIELDS.values(), ids=INVALID_FIELDS)
def test_validate_refuses_invalid_fields(change, where):
    with pytest.raises(exceptions.InvalidFormat, match=where):
        Failure.validate({**SEED, **change})


@pytest.mark.parametrize(
    "data", [None, [], "x", 7, {}], ids=["none", "list", "str", "int", "empty-dict"]
)
def test_validate_refuses_objects_other_than_failure_dicts(data):
    with pytest.raises(exceptions.InvalidFormat, match="failure"):
        Failure.validate(data)


def test_deeply_nested_causes_are_validated_without_recursion():
    data = dict(SEED)
    for _ in range(10_000):
        data = {**SEED, "causes": [data]}
    Failure.validate(data)
    assert len(Failure.from_dict(data).causes) == 100
    data["causes"][0]["causes"][0]["exception_str"] = None
    with pytest.raises(exceptions.InvalidFormat, match="exception_str"):
        Failure.validate(data)


def test_json_schema_agrees_with_validate():
    import jsonschema

    jsonschema.Draft4Validator.check_schema(Failure.SCHEMA)
    jsonschema.validate(json.loads(json.dumps(captured().to_dict())), Failure.SCHEMA)
    Failure.validate(captured().to_dict())


@pytest.mark.parametrize("detail", [object(), lambda: None], ids=["args", "unpicklable"])
def test_unpicklable_exception_is_dropped_from_pickle(detail):
    failure = Failure.from_exception(Demanding(3, detail))
    again = pickle.loads(pickle.dumps(failure))
    assert again.exception is None
    assert again.matches(failure)
    with pytest.raises(exceptions.WrappedFailure):
        again.reraise()


def test_copy_and_from_dict_keep_the_subclass():
    class Special(Failure):
        pass

    special = Special.from_exception(Plain("x"))
    assert type(special.copy()) is Special
    assert type(Special.from_dict(special.to_dict())) is Special


def test_traceback_is_rendered_on_first_access(monkeypatch):
    rendered = []
    render = module._exception_copies.format_frame_lines
    monkeypatch.setattr(
        module._exception_copies,
        "format_frame_lines",
        lambda lines: rendered.append(1) or render(lines),
    )
    failure = captured()
    assert not rendered
    assert failure.traceback_str is failure.traceback_str
    assert len(rendered) == 1
