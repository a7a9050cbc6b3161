"""Exceptions of remote failures, which are `WrappedFailure` and have the original type."""

from __future__ import annotations

import abc
import asyncio
import copy
import dataclasses
import enum
import gc
import json
import pickle
import subprocess
import sys
import traceback
import types
import typing
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from wbengine import exceptions, retry
from wbengine.types import _reraised_exceptions, failure
from wbengine.types.failure import Failure


class Plain(Exception):
    pass


class Demanding(Exception):
    def __init__(self, code: int, *, detail: object) -> None:
        super().__init__(code, detail)
        self.code = code
        self.__secret = detail

    @property
    def reason(self) -> str:
        return f"because of {self.code}"

    def __str__(self) -> str:
        return f"{self.code}: {self.__secret}"

    def __repr__(self) -> str:
        return f"<{self.__secret}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Demanding) and self.code == other.code

    def __hash__(self) -> int:
        return hash(self.code)

    def __bool__(self) -> bool:
        return bool(self.code)

    def __format__(self, spec: str) -> str:
        return format(self.code, spec)

    def __reduce__(self) -> Any:
        return Demanding, (self.code,), {"detail": self.__secret}


class Slotted(ValueError):
    __slots__ = ("_causes", "code")

    def __init__(self, code: int) -> None:
        self.code = code


class Tricky(Exception):
    """Exception with methods that raise, and a constructor with required arguments."""

    def __new__(cls, *args: Any) -> Tricky:
        if len(args) != 3:
            raise TypeError("three, please")
        return super().__new__(cls, *args)

    def __init__(self, a: int, b: int, c: int) -> None:
        super().__init__(a, b, c)

    def __init_subclass__(cls, **options: Any) -> None:
        raise TypeError("no subclasses, please")

    def __getattribute__(self, name: str) -> Any:
        if name in ("__dict__", "__notes__", "__cause__", "args", "check"):
            raise RuntimeError("hands off")
        return super().__getattribute__(name)

    def __getattr__(self, name: str) -> Any:
        return getattr(self, name)

    def __setattr__(self, name: str, value: Any) -> None:
        raise RuntimeError("hands off")

    def __iter__(self) -> Iterator[Any]:
        raise RuntimeError("hands off")

    __str__ = __repr__ = __len__ = __bool__ = __iter__  # type: ignore[assignment]

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise RuntimeError("hands off")


class Registered(type):
    made: typing.ClassVar[list[str]] = []

    def __init__(cls, name: str, bases: Any, namespace: Any) -> None:
        super().__init__(name, bases, namespace)
        Registered.made.append(name)


class Listed(Exception, metaclass=Registered):
    pass


class Abstract(Exception, abc.ABC):
    @abc.abstractmethod
    def missing(self) -> None: ...


class Concrete(Abstract):
    def missing(self) -> None: ...


class Coded(Exception, enum.Enum):
    LOW = "low"
    HIGH = "high"


@dataclasses.dataclass(frozen=True)
class Data(Exception):
    code: int
    text: str


@typing.final
class Last(LookupError):
    class Inner(OSError):
        pass


def described(error: BaseException, home: str | None = None) -> Failure:
    """Return the failure as another process receives it."""
    arrived = Failure.from_dict(json.loads(json.dumps(Failure.from_exception(error).to_dict())))
    if home is not None:
        arrived.belongs_to(home)
    return arrived


def raised(one: Failure) -> Any:
    try:
        one.reraise()
    except BaseException as error:
        return error


@pytest.fixture
def allowed(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the allowed types after the test."""
    before, classes = set(_reraised_exceptions._allowed), dict(_reraised_exceptions._classes)
    yield
    _reraised_exceptions._allowed.clear()
    _reraised_exceptions._allowed.update(before)
    _reraised_exceptions._classes.clear()
    _reraised_exceptions._classes.update(classes)


#: `test_remote_error_keeps_attributes_of_builtin_types` contains further types.
BUILTINS = [
    ValueError("boom"),
    KeyError("k"),
    OSError("bare"),
    BlockingIOError(11, "later", 5),
    StopAsyncIteration(),
    IndentationError("bad", ["f", 1, "x", {}]),
    ModuleNotFoundError("x"),
    AssertionError(),
    ZeroDivisionError("division by zero"),
    RecursionError(),
    DeprecationWarning("old"),
    ConnectionResetError(),
    NotImplementedError((1, 2)),
]
OURS = [
    exceptions.NotFound("nothing"),
    exceptions.NotEncodable(path="result['a']", type_name="socket.socket"),
    exceptions.MissingDependencies("a", {"b"}),
    exceptions.DisallowedAccess("not now", state="CLAIMED"),
    exceptions.RequestTimeout("late", ValueError("why")),
]
MINE = [
    Plain("text", 3),
    Plain(),
    Demanding(3, detail=object()),
    Slotted(4),
    Tricky(1, 2, 3),
    Listed("x"),
    Concrete("x"),
    Data(1, "text"),
    Last("x"),
    Last.Inner(5, "io"),
]


def is_fine(error: Any, original: BaseException) -> None:
    """Check that the error has both types and supports all usual operations of exceptions."""
    assert isinstance(error, type(original)) and isinstance(error, exceptions.WrappedFailure)
    assert str(error) == next(iter(error)).exception_str
    assert repr(error) and f"{error}" == str(error) and error
    assert error == error and error != copy.copy(error) and len({error, error}) == 1
    assert "WrappedFailure[" in "".join(traceback.format_exception(error))
    assert traceback.TracebackException.from_exception(error, capture_locals=True)
    assert len(error) == 1 and error.check(type(original)) is type(original)
    error.add_note("a note")
    error.extra = [1]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        again = pickle.loads(pickle.dumps(error, protocol))
        assert type(again) is type(error)
        assert (str(again), repr(again.args), again.extra) == (str(error), repr(error.args), [1])
        assert getattr(again, "__notes__", None) == getattr(error, "__notes__", None)
    assert type(copy.deepcopy(error)) is type(error)
    with pytest.raises(type(original)):
        raise error
    with pytest.raises(RuntimeError) as chained:
        raise RuntimeError("later") from error
    assert "The above" in "".join(traceback.format_exception(chained.value))


@pytest.mark.parametrize("original", [*BUILTINS, *OURS], ids=lambda one: type(one).__name__)
def test_remote_builtin_and_wbengine_errors_keep_their_type(original: BaseException) -> None:
    is_fine(raised(described(original)), original)


@pytest.mark.parametrize("original", MINE, ids=lambda one: type(one).__name__)
def test_remote_error_of_task_module_keeps_its_type(original: BaseException) -> None:
    one = Failure(
        exception_str=exceptions.exception_message(original),
        exc_type_names=list(Failure.from_exception(original)),
        traceback_str="",
    )
    assert not isinstance(raised(one), type(original))
    one.belongs_to(__name__)
    is_fine(raised(one), original)
    is_fine(raised(pickle.loads(pickle.dumps(one))), original)
    is_fine(raised(one.copy()), original)


def test_remote_error_keeps_arguments_that_were_sent() -> None:
    error = raised(described(OSError(2, "no such", "name")))
    assert error.args == (2, "no such")
    assert (error.errno, error.strerror, error.filename) == (2, "no such", "name")
    assert raised(described(KeyError("k"))).args == ("k",)
    assert raised(described(StopIteration(3))).value == 3
    assert raised(described(AssertionError())).args == ()
    assert raised(described(ValueError(object))).args == (str(object),)


def test_reading_attribute_that_was_not_sent_raises_named_error() -> None:
    one = described(Demanding(3, detail=None), __name__)
    error = raised(one)
    for name in ("code", "reason", "nothing"):
        with pytest.raises(AttributeError, match=r"Demanding is not available: only the type"):
            getattr(error, name)
    ours = raised(described(exceptions.NotEncodable(path="a", type_name="b")))
    assert (ours.path, ours.type_name, ours.cause) == ("", "", None)
    assert ours.pformat() == "a: b cannot be encoded"


@pytest.mark.parametrize(
    "original",
    [
        SystemExit(3),
        KeyboardInterrupt(),
        GeneratorExit(),
        asyncio.CancelledError(),
        subprocess.CalledProcessError(1, "x"),
        Exception("x"),
        exceptions.WrappedFailure([Failure.from_exception(ValueError())]),
        BaseExceptionGroup("g", [KeyboardInterrupt()]),
    ],
    ids=lambda one: type(one).__name__,
)
def test_exits_and_types_not_allowed_are_plain_wrapped_failures(original: BaseException) -> None:
    """Such a type would end the process, adds no information, or is not allowed."""
    assert type(raised(described(original))) is exceptions.WrappedFailure


def test_type_that_is_not_allowed_is_replaced_by_its_nearest_base_class() -> None:
    error = raised(described(json.JSONDecodeError("m", "doc", 1)))
    assert isinstance(error, ValueError) and not isinstance(error, json.JSONDecodeError)
    assert str(error) == "m: line 1 column 2 (char 1)"
    again = Failure.from_exception(error)
    assert again.check(json.JSONDecodeError, ValueError) is json.JSONDecodeError


def test_module_of_the_task_is_read_only_from_stored_failures() -> None:
    failed = Failure.from_exception(Plain("x"))
    failed.belongs_to(__name__)
    stored = failed.to_json(include_home=True)
    assert isinstance(raised(Failure.from_dict(stored, read_home=True)), Plain)
    assert type(raised(Failure.from_dict(stored))) is exceptions.WrappedFailure
    assert "home" not in failed.to_dict()


@pytest.mark.parametrize(
    "original",
    [
        FileNotFoundError(2, "no such", "name"),
        OSError(18, "cross-device", b"\xff", None, "other"),
        PermissionError(13, "denied", "bad\udcff"),
        UnicodeDecodeError("utf-8", b"a\xff", 1, 2, "why"),
        UnicodeEncodeError("utf-8", "a\ud800", 1, 2, "surrogates"),
        UnicodeTranslateError("text", 1, 2, "why"),
        SyntaxError("bad", ("f", 1, 2, "text", 3, 4)),
        ImportError("x", name="n", path="p"),
        AttributeError("a", name="n"),
        NameError("a", name="n"),
        StopIteration(5),
    ],
    ids=lambda one: type(one).__name__,
)
def test_remote_error_keeps_attributes_of_builtin_types(original: BaseException) -> None:
    for one in (described(original), pickle.loads(pickle.dumps(described(original)))):
        error = raised(one)
        is_fine(error, original)
        for name in (
            "errno", "strerror", "filename", "filename2", "encoding", "object", "start", "end",
            "reason", "msg", "lineno", "offset", "text", "end_lineno", "end_offset", "name", "path",
            "value",
        ):  # fmt: skip
            assert getattr(error, name, None) == getattr(original, name, None), name
        assert not isinstance(original, UnicodeError) or error.args == original.args
        assert described(error)._plain_attributes() == one._plain_attributes()


@pytest.mark.parametrize(
    "attributes",
    [
        {"filename": 7, "errno": "2", "strerror": {"bytes": "eA=="}, "other": "x"},
        {"filename": {"bytes": 3}, "errno": 2**40, "filename2": {"text": "/w=="}},
        {"filename": {"bytes": "é"}, "errno": True, "strerror": {}, "characters_written": 3},
    ],
)
def test_invalid_attributes_of_remote_error_are_ignored(attributes: dict[str, Any]) -> None:
    one = Failure(
        exception_str="x", exc_type_names=["OSError", "Exception"], exc_attributes=attributes
    )
    error = raised(one)
    assert (error.errno, error.strerror, error.filename, error.filename2) == (None,) * 4


def test_invalid_syntax_error_is_printed() -> None:
    attributes = {"text": "x", "lineno": 1, "offset": 1, "end_offset": 2**30, "filename": "f"}
    one = Failure(
        exception_str="x", exc_type_names=["SyntaxError", "Exception"], exc_attributes=attributes
    )
    assert len("".join(traceback.format_exception(raised(one)))) < 1000


class Batch(ExceptionGroup[Exception]):
    def derive(self, members: Any) -> Any:
        return Batch(self.message, members)


@pytest.mark.parametrize("kind", [ExceptionGroup, Batch])
def test_remote_group_is_handled_by_its_members(kind: type[ExceptionGroup[Exception]]) -> None:
    inner = ValueError("row 3")
    inner.__cause__ = KeyError("k")
    inner.add_note("sheet 2")
    group = kind("2 of 9", [inner, kind("inner", [OSError(2, "no", "f"), SystemExitLike("x")])])
    group.add_note("batch")
    one = described(group, __name__)
    found: list[Any] = []
    rest: list[Any] = []
    try:
        one.reraise()
    except* ValueError as caught:
        found.extend(caught.exceptions)
    except* OSError as caught:
        rest.extend(caught.exceptions)
    except* exceptions.WrappedFailure as caught:
        rest.extend(caught.exceptions)
    (error,) = found
    assert isinstance(error.__cause__, KeyError) and error.__notes__ == ["sheet 2"]
    assert [str(each) for each in rest] == ["inner (1 sub-exception)"] * 2
    again = raised(one)
    is_fine(again, group)
    assert again.message == "2 of 9" and again.__notes__ == ["batch", "a note"]
    assert isinstance(again, kind) and Failure.from_exception(raised(one)).members[0].causes
    assert raised(pickle.loads(pickle.dumps(one))).exceptions[1].exceptions[0].filename == "f"


class SystemExitLike(Exception):
    pass


def test_remote_group_without_members_is_plain_wrapped_failure() -> None:
    data = Failure.from_exception(ExceptionGroup("g", [ValueError(1)])).to_dict()
    del data["members"]
    assert type(raised(Failure.from_dict(data))) is exceptions.WrappedFailure


def test_traceback_of_captured_remote_error_contains_the_remote_lines() -> None:
    try:
        raise ValueError("far away")
    except ValueError as error:
        one = described(error)
    text = Failure.from_exception(raised(one)).traceback_str
    assert text.index("in raised") < text.index('raise ValueError("far away")')


def test_type_not_found_in_its_module_is_plain_wrapped_failure() -> None:
    class Local(Exception):
        pass

    one = described(Local("x"), __name__)
    assert type(raised(one)) is exceptions.WrappedFailure
    for name in (f"{__name__}.Nobody", f"{__name__}.BUILTINS", "os.path", "builtins.ValueError",
                 "print", "", ".", "a.b", f"{__name__}.socket.timeout"):  # fmt: skip
        forged = Failure(exception_str="x", exc_type_names=[name, "Exception"])
        forged.belongs_to(__name__)
        assert type(raised(forged)) is exceptions.WrappedFailure


def closed_error() -> type[Exception]:
    """Return a class that has no hash and rejects subclasses."""

    class Closed(type):
        def __new__(mcs, name: str, bases: Any, namespace: Any) -> Any:
            if any(isinstance(base, Closed) for base in bases):
                raise TypeError("closed")
            return super().__new__(mcs, name, bases, namespace)

        __hash__ = None  # type: ignore[assignment]

        def __eq__(cls, other: object) -> bool:
            return cls is other

    return Closed("Shut", (Exception,), {"__module__": __name__})


def test_enum_and_non_subclassable_errors_are_wrapped_failures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys.modules[__name__], "Shut", closed_error(), raising=False)
        for original in (Coded.LOW, sys.modules[__name__].Shut("x")):
            one = Failure(exception_str="x", exc_type_names=list(Failure.from_exception(original)))
            one.belongs_to(__name__)
            error = raised(one)
            assert isinstance(error, exceptions.WrappedFailure)
            assert str(error) and traceback.format_exception(error)
    del original
    gc.collect()
    # Other tests import tblib (by dask), which collects all exception classes in a set.
    assert "Shut" not in [each.__name__ for each in Exception.__subclasses__()]


def test_creating_remote_type_runs_no_code_of_the_original() -> None:
    before = list(Registered.made)
    assert isinstance(raised(described(Listed("x"), __name__)), Listed)
    assert Registered.made == before


def test_one_wrapper_type_exists_per_original_type() -> None:
    first, second = raised(described(KeyError(1))), raised(described(KeyError("2")))
    assert type(first) is type(second)
    assert type(first).__mro__.index(exceptions.WrappedFailure) < type(first).__mro__.index(
        KeyError
    )
    assert f"{type(first).__module__}.{type(first).__qualname__}" == (
        "wbengine.exceptions.WrappedFailure[KeyError]"
    )


def test_failure_description_does_not_cause_imports() -> None:
    name = "wave"
    sys.modules.pop(name, None)
    failure.allow(f"{name}.Error")
    try:
        one = Failure(exception_str="x", exc_type_names=["wave.Error", "Exception"])
        one.belongs_to(name)
        assert type(raised(one)) is exceptions.WrappedFailure
        assert name not in sys.modules
    finally:
        _reraised_exceptions._allowed.discard(f"{name}.Error")


@pytest.mark.parametrize(
    ("what", "works"),
    [
        pytest.param(json.JSONDecodeError, True, id="class"),
        pytest.param(json, True, id="module"),
        pytest.param(json.decoder, True, id="submodule"),
        pytest.param("json", True, id="module-name"),
        pytest.param("json.decoder.JSONDecodeError", True, id="class-name"),
        pytest.param("json.decoder.JSONDecode", False, id="prefix-of-class-name"),
        pytest.param("js", False, id="prefix-of-module-name"),
        pytest.param(json.encoder, False, id="other-submodule"),
    ],
)
def test_allow_enables_type_or_types_of_module(allowed: None, what: Any, works: bool) -> None:
    original = json.JSONDecodeError("m", "doc", 1)
    assert failure.allow(what) is what
    assert isinstance(raised(described(original)), json.JSONDecodeError) is works


def test_allow_as_decorator_enables_local_class(allowed: None) -> None:
    @failure.allow
    class Local(Exception):
        pass

    is_fine_here = raised(described(Local("x")))
    assert isinstance(is_fine_here, Local)
    assert isinstance(pickle.loads(pickle.dumps(is_fine_here)), Local)


@pytest.mark.parametrize(
    "what",
    [None, 3, int, ValueError("x"), ["json"], Failure],
    ids=["none", "int", "int-type", "instance", "list", "class"],
)
def test_allow_rejects_anything_but_exceptions_and_modules(what: Any) -> None:
    with pytest.raises(TypeError, match="only exception classes and modules"):
        failure.allow(what)


@pytest.mark.parametrize(
    "what", ["", ".", "a..b", "a b", "1x", "json.", "pkg:Name", "f.<locals>.X"]
)
def test_allow_rejects_malformed_names(what: str) -> None:
    with pytest.raises(ValueError, match="An allowed name must be"):
        failure.allow(what)


def test_error_of_another_module_of_the_package_must_be_allowed(allowed: None) -> None:
    module = types.ModuleType("pkg_of_tests.tasks")
    module.Bad = type("Bad", (Exception,), {"__module__": module.__name__})  # type: ignore[attr-defined]
    sys.modules[module.__name__] = module
    try:
        original = module.Bad("x")  # type: ignore[attr-defined]
        for home, works in [("pkg_of_tests", False), ("pkg_of_tests.tasks", True)]:
            one = described(original, home)
            assert isinstance(raised(one), module.Bad) is works  # type: ignore[attr-defined]
        failure.allow("pkg_of_tests")
        one = described(original, "elsewhere")
        assert isinstance(raised(one), module.Bad)  # type: ignore[attr-defined]
    finally:
        del sys.modules[module.__name__]


def test_remote_error_has_causes_of_the_original() -> None:
    try:
        try:
            try:
                raise KeyError("deep")
            except KeyError as error:
                raise SystemExit(3) from error
        except SystemExit:
            raise ValueError("top")  # noqa: B904
    except ValueError as error:
        one = described(error)
    found = raised(one)
    assert isinstance(found, ValueError)
    assert type(found.__cause__) is exceptions.WrappedFailure
    assert isinstance(found.__cause__.__cause__, KeyError)
    told = Failure.from_exception(found)
    assert [next(iter(each)) for each in (told, *told.causes)] == [
        "ValueError", "wbengine.exceptions.WrappedFailure", "KeyError",
    ]  # fmt: skip


def test_captured_remote_error_is_described_like_the_original() -> None:
    """This happens if a task on a worker runs a flow on remote workers."""
    again = Failure.from_exception(raised(described(FileNotFoundError(2, "no"))))
    assert list(again) == [
        "FileNotFoundError", "OSError", "wbengine.exceptions.WrappedFailure", "Exception",
    ]  # fmt: skip
    assert again.check(OSError) and again.check(exceptions.WrappedFailure)
    further = raised(described(raised(again)))
    assert isinstance(further, FileNotFoundError)
    assert isinstance(raised(pickle.loads(pickle.dumps(again))), FileNotFoundError)
    assert exceptions.WrappedFailure([again]).check(OSError) is OSError


def test_failure_checks_and_retry_history_accept_remote_failure() -> None:
    one = described(FileNotFoundError(2, "no"))
    assert one.check(ValueError, OSError) is OSError
    history = retry.History([(1, {"a": one})])
    assert history.caused_by(OSError) and not history.caused_by(ValueError)
    assert one.exception is None and one.exc_info is None


def test_several_failures_raise_plain_wrapped_failure() -> None:
    one, two = described(ValueError("1")), described(ValueError("2"))
    with pytest.raises(exceptions.WrappedFailure) as caught:
        Failure.reraise_if_any([one, two])
    assert type(caught.value) is exceptions.WrappedFailure
    assert list(caught.value) == [one, two]
    with pytest.raises(ValueError):
        Failure.reraise_if_any([one])
    # Nested wrapped failures are flattened.
    inner = Failure.from_exception(raised(one))
    assert list(exceptions.WrappedFailure([inner, two])) == [one, two]


def test_pickled_error_is_plain_where_its_type_is_not_allowed(allowed: None) -> None:
    failure.allow(subprocess)
    error = raised(described(subprocess.CalledProcessError(1, "x")))
    assert isinstance(error, subprocess.CalledProcessError)
    data = pickle.dumps(error)
    _reraised_exceptions._allowed.discard("subprocess")
    again = pickle.loads(data)
    assert type(again) is exceptions.WrappedFailure
    assert next(iter(again)).matches(next(iter(error)))


def test_reraised_remote_failure_keeps_no_frames() -> None:
    class Local:
        pass

    one = described(ValueError("x"))

    def catcher() -> weakref.ref[Local]:
        mine = Local()
        try:
            one.reraise()
        except ValueError as error:
            held = Failure.from_exception(error)
            assert held.exception is not None and held.exception.__traceback__ is None
            assert list(held.exception) == [one]
            return weakref.ref(mine)
        raise AssertionError

    ref = catcher()
    gc.collect()
    assert ref() is None


def test_timeout_error_keeps_its_builtin_type() -> None:
    """`socket.timeout` is an alias of `TimeoutError`; a failure contains the original name."""
    assert isinstance(raised(described(TimeoutError("late"))), TimeoutError)
