"""Failures: exceptions in a form that can be stored, compared, sent and raised again."""

from __future__ import annotations

import functools
import itertools
import json
import math
import pickle
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, NoReturn

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.types import (
    _exception_attributes,
    _exception_copies,
    _failure_text,
    _reraised_exceptions,
)
from wbengine.types._schema_validation import Schema

_ROOTS: Final = ("Exception", "BaseException")

_SCHEMA: Final[dict[str, Any]] = {
    "$ref": "#/definitions/cause",
    "definitions": {
        "cause": {
            "type": "object",
            "properties": {
                "version": {"type": "integer", "minimum": 0},
                "exc_args": {"type": "array", "minItems": 0},
                "exception_str": {"type": "string"},
                "traceback_str": {"type": ["string", "null"]},
                "exc_type_names": {"type": "array", "items": {"type": "string"}, "minItems": 1},
                "causes": {"type": "array", "items": {"$ref": "#/definitions/cause"}},
                "has_implicit_cause": {"type": "boolean"},
                "members": {"type": "array", "items": {"$ref": "#/definitions/cause"}},
                "notes": {"type": "array", "items": {"type": "string"}},
                "exc_attributes": {
                    "type": "object",
                    "additionalProperties": {"type": ["string", "integer", "object"]},
                },
            },
            "required": ["exception_str", "traceback_str", "exc_type_names"],
            "additionalProperties": True,
        }
    },
}

#: Maximum number of causes that are read from a description.
MAX_CAUSES: Final = 100
#: Maximum number of causes and members that are read from a description, at all levels.
_MAX_PARTS: Final = 2 * MAX_CAUSES
#: Maximum nesting of groups: the number of levels that Python prints.
_MAX_GROUP_DEPTH: Final = 10
#: Maximum nesting of exception arguments that are written.
_MAX_ARGS_DEPTH: Final = 8
#: Maximum characters of a stored message, a traceback or all notes, and maximum bytes of stored
#: arguments or attributes.
MAX_TEXT_LENGTH: Final = 65536
#: Maximum size of integers, because Python's JSON parser rejects longer ones.
_MAX_INT_BITS: Final = 14_000

#: Schema of one level. A description may be nested deeper than Python's recursion limit.
_CAUSE_SCHEMA: Final = Schema(
    {**_SCHEMA["definitions"]["cause"], "definitions": {"cause": {}}}, "failure"
)

#: Allow further types to be raised for failures without an exception.
allow = _reraised_exceptions.allow

ExcInfo = tuple[type[BaseException], BaseException, types.TracebackType | None]


class Failure:
    """A captured exception with its description.

    Create it from the current exception (`Failure()`), from `sys.exc_info()`, from an exception
    (`from_exception`), or from parts (`from_dict`, unpickling). Any `BaseException` can be
    captured.

    A failure created in this process contains a copy of the exception, and raises it again. It does
    not keep frames and their local variables alive. The original exception is not changed.

    A failure created from parts has no exception, and raises a `WrappedFailure`. If the original
    type is a builtin, an error of this package, defined in the module of the failed task, or
    permitted by `allow`, the raised exception is also an instance of that type. Types that are not
    an `Exception` are excluded.

    Immutable and not hashable. Failures are equal if all parts are equal. `matches` ignores a
    missing exception.
    """

    #: Version of the format that `to_dict` writes.
    DICT_VERSION: ClassVar[int] = 1
    #: Valid values of the last of `exc_type_names`: the base classes of all exceptions.
    BASE_EXCEPTIONS: ClassVar[tuple[str, ...]] = _ROOTS
    #: JSON Schema of the format that `to_dict` writes.
    SCHEMA: ClassVar[dict[str, Any]] = _SCHEMA

    __slots__ = (
        "__weakref__",
        "_args",
        "_attributes",
        "_causes",
        "_exception",
        "_frame_lines",
        "_has_implicit_cause",
        "_home",
        "_members",
        "_message",
        "_notes",
        "_traceback",
        "_type_names",
    )

    _args: tuple[Any, ...]
    _attributes: Mapping[str, Any] | None
    _exception: BaseException | None
    _causes: tuple[Failure, ...]
    _has_implicit_cause: bool
    _members: tuple[Failure, ...]
    _notes: tuple[str, ...]
    _home: str | None
    _frame_lines: tuple[_exception_copies.FrameLine, ...]
    _traceback: str | None

    def __init__(
        self,
        exc_info: tuple[Any, Any, Any] | None = None,
        **parts: Any,
    ) -> None:
        """Capture `exc_info` or the current exception, or build a failure from `parts`.

        The parts are `exception_str`, `exc_type_names`, `traceback_str`, `exc_args`,
        `exc_attributes`, `notes`, `causes`, `has_implicit_cause`, `members` and `home`.

        :raises TypeError: if there is no exception to capture, or a part is unknown.
        :raises ValueError: if `exc_info` is not a triple.
        """
        if parts:
            self._from_parts(exc_info, parts)
            return
        if exc_info is None:
            exc_info = sys.exc_info()
        elif not isinstance(exc_info, tuple | list) or len(exc_info) != 3:
            raise ValueError("'exc_info' must contain three items: type, value, traceback")
        error = exc_info[1]
        if not isinstance(error, BaseException):
            raise TypeError(f"A Failure can only capture an exception, got {error!r}")
        self._capture(error, exc_info[2])

    def _capture(self, error: BaseException, tb: types.TracebackType | None) -> None:
        copies: dict[int, BaseException] = {}
        _exception_copies.copy_of(error, copies)
        self._describe(error, tb, copies, [], 0)

    def _describe(
        self,
        error: BaseException,
        tb: types.TracebackType | None,
        copies: Mapping[int, BaseException],
        seen: list[int],
        depth: int,
    ) -> None:
        """Describe an exception with its causes and members. `seen`: see `chain_of`."""
        chain = _exception_copies.chain_of(error, seen)
        members = [_captured_members(each, copies, seen, depth) for each in chain]
        causes: tuple[Failure, ...] = ()
        for index in range(len(chain) - 1, 0, -1):
            cause = chain[index]
            failure = Failure.__new__(Failure)
            cause_tb = _exception_copies.read_attribute(cause, "__traceback__")
            failure._fill(cause, copies.get(id(cause), cause), cause_tb, causes, members[index])
            causes = (failure, *causes)
        self._fill(error, copies.get(id(error), error), tb, causes, members[0])

    def _fill(
        self,
        error: BaseException,
        copied: BaseException,
        tb: types.TracebackType | None,
        causes: tuple[Failure, ...],
        members: tuple[Failure, ...],
    ) -> None:
        self._exception = copied
        self._args = _exception_copies.read_attribute(copied, "args")
        self._attributes = None
        self._home = None
        if isinstance(error, _reraised_exceptions.RemoteError):
            remote = next(iter(error))
            self._home, self._type_names = remote._home, _wrapped_type_names(remote)
        else:
            try:
                self._type_names = _type_names(type(error))  # type: ignore[arg-type]
            except TypeError:  # A metaclass may create classes that are not hashable.
                self._type_names = _type_names.__wrapped__(type(error))
        self._message = exceptions.exception_message(error)
        self._notes = _exception_copies.notes_of(error)
        self._frame_lines = _exception_copies.frame_lines_of(tb)
        self._traceback = None
        self._causes = causes
        self._has_implicit_cause = (
            bool(causes) and _exception_copies.read_attribute(error, "__cause__") is None
        )
        self._members = members

    def _from_parts(self, exc_info: Any, parts: dict[str, Any]) -> None:
        try:
            self._message = parts.pop("exception_str")
        except KeyError:
            raise TypeError(
                "Failure() requires 'exception_str' if it is constructed from parts"
            ) from None
        self._type_names = tuple(parts.pop("exc_type_names", ()))
        self._traceback = parts.pop("traceback_str", None) or ""
        self._args = tuple(parts.pop("exc_args", None) or ())
        self._attributes = parts.pop("exc_attributes", None) or {}
        self._notes = tuple(parts.pop("notes", None) or ())
        self._causes = tuple(parts.pop("causes", None) or ())
        self._has_implicit_cause = bool(parts.pop("has_implicit_cause", False))
        self._members = tuple(parts.pop("members", None) or ())
        self._exception = exc_info[1] if exc_info else None
        self._frame_lines = ()
        self._home = parts.pop("home", None)
        if parts:
            raise TypeError(
                "Failure.__init__ got unexpected keyword argument(s): " + ", ".join(sorted(parts))
            )

    @classmethod
    def from_exception(cls, exception: BaseException) -> Failure:
        """Capture `exception` with its traceback.

        :raises TypeError: if it is not an exception.
        """
        if not isinstance(exception, BaseException):
            raise TypeError(f"A Failure can only capture an exception, got {exception!r}")
        return cls(
            (
                type(exception),
                exception,
                _exception_copies.read_attribute(exception, "__traceback__"),
            )
        )

    @classmethod
    def capture(cls) -> Failure:
        """Capture the current exception.

        :raises TypeError: if there is none.
        """
        return cls()

    @property
    def exception(self) -> BaseException | None:
        """The exception, or None if only its description is available."""
        return self._exception

    @property
    def exception_str(self) -> str:
        """The message of the exception."""
        return self._message

    @property
    def exception_args(self) -> tuple[Any, ...]:
        """The arguments of the exception; empty if they were not sent."""
        return self._args

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the exception (`add_note`)."""
        return self._notes

    @property
    def exc_info(self) -> ExcInfo | None:
        """`(type, exception, traceback)`, or None. The traceback has lines but no variables."""
        if self._exception is None:
            return None
        self._set_tracebacks({})
        return (
            type(self._exception),
            self._exception,
            _exception_copies.traceback_of(self._frame_lines),
        )

    def _set_tracebacks(self, copies: Mapping[int, BaseException]) -> None:
        """Set the tracebacks of causes and members, or of their `copies`, by id."""
        for part in itertools.islice(_all_failures(self), 1, None):
            error = part._exception
            if error is not None:
                _exception_copies.set_traceback(copies.get(id(error), error), part._frame_lines)

    #: TaskFlow's name for `exc_info`.
    _exc_info = exc_info

    @property
    def traceback_str(self) -> str:
        """The text of the traceback, rendered on first use."""
        if self._traceback is None:
            self._traceback = _exception_copies.format_frame_lines(self._frame_lines)
            if isinstance(self._exception, exceptions.WrappedFailure) and len(self._exception) == 1:
                # The exception was raised elsewhere, and again here.
                self._traceback += next(iter(self._exception)).traceback_str
        return self._traceback

    @property
    def causes(self) -> tuple[Failure, ...]:
        """The causes, nearest first: `__cause__`, otherwise `__context__` unless suppressed."""
        return self._causes

    @property
    def has_implicit_cause(self) -> bool:
        """Whether the nearest of `causes` is the `__context__` of the exception."""
        return self._has_implicit_cause

    @property
    def members(self) -> tuple[Failure, ...]:
        """The exceptions of an exception group, with their causes and members."""
        return self._members

    @property
    def home(self) -> str | None:
        """The module of the failed task, or None if it is unknown."""
        return self._home

    def belongs_to(self, home: str) -> None:
        """Set the module of the failed task, for this failure, its causes and its members.

        Parts whose module is known keep it: the exception of a workflow can contain those of steps.
        The module determines which types are raised. So only code that has the task may call this.
        """
        for failure in _all_failures(self):
            if failure._home is None:
                failure._home = home

    def __iter__(self) -> Iterator[str]:
        return iter(self._type_names)

    def check(self, *exc_classes: type[BaseException] | str) -> type[BaseException] | str | None:
        """Return the first of `exc_classes` (types or full names) that the exception is, or None.

        :raises TypeError: if an argument is neither a type nor a name.
        """
        for exc_class in exc_classes:
            if not isinstance(exc_class, type | str | BaseException):
                raise TypeError(
                    f"check() accepts exception classes and full names, got {exc_class!r}"
                )
            name = exc_class if isinstance(exc_class, str) else object_names.dotted(exc_class)
            if name in self._type_names:
                return exc_class
        return None

    def reraise(self) -> NoReturn:
        """Raise the exception again, or a `WrappedFailure` if there is no exception."""
        if self._exception is None:
            raise _reraised_exceptions.remote_error(self)
        # Copy it each time, because a raised exception collects the frames that it passes.
        copies: dict[int, BaseException] = {}
        error = _exception_copies.copy_of(self._exception, copies)
        self._set_tracebacks(copies)
        try:
            raise error.with_traceback(_exception_copies.traceback_of(self._frame_lines))
        finally:
            # Break the cycle between this frame and its traceback, which would keep variables
            # alive.
            del error, copies

    @staticmethod
    def reraise_if_any(failures: Iterable[Failure]) -> None:
        """Raise a single failure as its exception, several as one `WrappedFailure`."""
        failure_list = list(failures)
        wrapped = exceptions.WrappedFailure(failure_list)  # Also checks the types.
        if len(failure_list) == 1:
            failure_list[0].reraise()
        elif failure_list:
            try:
                raise wrapped
            finally:
                del wrapped  # As in `reraise`.

    def _same_description(self, other: Failure) -> bool:
        return (
            self._type_names == other._type_names
            and self._message == other._message
            and self.traceback_str == other.traceback_str
            and self._notes == other._notes
            and len(self._members) == len(other._members)
            and all(map(_same_causes, self._members, other._members))
        )

    def matches(self, other: Any) -> bool:
        """Return True if `other` is the same failure, even if one of them lost its exception."""
        if not isinstance(other, Failure):
            return False
        if self is other:
            return True
        if self._exception is not None and other._exception is not None:
            return self == other
        return _same_causes(self, other)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Failure):
            return NotImplemented
        if self is other:
            return True
        own, theirs = self._exception, other._exception
        if type(own) is not type(theirs):
            return False
        return (own is theirs or _safe_repr(own) == _safe_repr(theirs)) and _same_causes(
            self, other
        )

    __hash__ = None  # type: ignore[assignment]

    def pformat(self, traceback: bool = False) -> str:
        """Return type and message in one line.

        :param traceback: append the traceback, the notes, and the members with their tracebacks.
        """
        kind = f"{self._type_names[0]}: " if self._type_names else ""
        text = f"Failure: {kind}{self._message}"
        if not traceback:
            return text
        entries = self.traceback_str.rstrip()
        head = "Traceback (most recent call last):" if entries else "Traceback not available."
        parts = (text, head, entries, *self._notes, _failure_text.members_text(self))
        return "\n".join(part for part in parts if part)

    def __str__(self) -> str:
        return self.pformat()

    def __repr__(self) -> str:
        return f"<{self.pformat()}>"

    def copy(self) -> Failure:
        """Return an equal failure."""
        copied = Failure.__new__(type(self))
        for slot in Failure.__slots__[1:]:
            setattr(copied, slot, getattr(self, slot))
        return copied

    __copy__ = copy

    def to_dict(self, include_args: bool = True) -> dict[str, Any]:
        """Return a JSON-compatible description without the exception itself.

        `exc_args` contains the exception's arguments if they are requested and plain JSON, and
        `exc_attributes` attributes of builtin exceptions, such as `filename`. The causes are a flat
        list, nearest first. The members of a group are nested.
        """
        data = self.to_json(include_args)
        for part in _all_parts(data):
            part["exc_args"] = tuple(part["exc_args"])
        return data

    def to_json(self, include_args: bool = True, *, include_home: bool = False) -> dict[str, Any]:
        """Return the result of `to_dict` with lists instead of tuples, as JSON returns them.

        :param include_home: include the modules of the failed tasks, for a store.
        """
        data = self._to_plain(include_args, include_home)
        if self._causes:
            data["causes"] = [cause._to_plain(include_args, include_home) for cause in self._causes]
        return data

    def _to_plain(self, include_args: bool, include_home: bool) -> dict[str, Any]:
        plain_args = self._args if include_args and _are_json(self._args) else ()
        data = {
            "exception_str": _without_surrogates(self._message),
            "traceback_str": _without_surrogates(self.traceback_str),
            "exc_type_names": list(self._type_names),
            "version": self.DICT_VERSION,
            "exc_args": list(plain_args),
        }
        # The previous release and TaskFlow know no further parts.
        if include_args and (attributes := self._plain_attributes()):
            data["exc_attributes"] = dict(attributes)
        if self._notes:
            data["notes"] = [_without_surrogates(note) for note in self._notes]
        if self._has_implicit_cause:
            data["has_implicit_cause"] = True
        if self._members:
            data["members"] = [
                member.to_json(include_args, include_home=include_home) for member in self._members
            ]
        if include_home and self._home is not None:
            data["home"] = self._home
        return data

    def _plain_attributes(self) -> Mapping[str, Any]:
        """Return the attributes of a builtin exception, as `_exception_attributes.read` does."""
        if self._attributes is None:
            assert self._exception is not None
            return _exception_attributes.read(self._exception)
        return self._attributes

    @classmethod
    def from_dict(cls, data: Mapping[str, Any], *, read_home: bool = False) -> Failure:
        """Create a failure from the result of `to_dict` (of wbengine or TaskFlow).

        :param read_home: read the modules of the failed tasks. They determine which types are
            raised, so a message must not contain them.
        :raises ValueError: if the description has another version.
        :raises InvalidFormat: if a part is missing or the data is not a description.
        """
        if not isinstance(data, Mapping):
            raise exceptions.InvalidFormat(f"A serialized failure must be a dict, got {data!r:.80}")
        version = data.get("version")
        if version != cls.DICT_VERSION:
            raise ValueError(
                f"The version of a serialized failure must be {cls.DICT_VERSION}, got {version!r}"
            )
        try:
            return _Reader(read_home).read(cls, data, 0)
        except KeyError as error:
            raise exceptions.InvalidFormat(f"A serialized failure must contain {error}") from None

    @classmethod
    def validate(cls, data: Any) -> None:
        """Validate untrusted data before `from_dict`.

        :raises InvalidFormat: if it is invalid.
        """
        # Without recursion, because parts may be nested deeper than Python's recursion limit.
        queue: list[tuple[Any, str]] = [(data, "failure")]
        for item, where in queue:
            # `Failure.to_dict` returns the arguments as a tuple.
            if type(item) is dict and type(item.get("exc_args")) is tuple:
                item = {**item, "exc_args": list(item["exc_args"])}
            _CAUSE_SCHEMA.check(item, where)
            root = item["exc_type_names"][-1]
            if root not in _ROOTS:
                raise exceptions.InvalidFormat(
                    f"{where}['exc_type_names'] must end in {' or '.join(_ROOTS)}, got {root!r}"
                )
            for key in ("causes", "members"):
                for place, part in enumerate(item.get(key, ())):
                    queue.append((part, f"{where[-100:]}[{key!r}][{place}]"))

    def __reduce__(self) -> tuple[Any, ...]:
        chain = [
            (failure._pickled_parts(), failure._pickled_exception(), failure._frame_lines)
            for failure in (self, *self._causes)
        ]
        return _unpickle, (type(self), chain)

    def _pickled_parts(self) -> dict[str, Any]:
        return {
            "exception_str": self._message,
            "exc_type_names": self._type_names,
            "traceback_str": self.traceback_str,
            "exc_args": self._args if _are_json(self._args) else (),
            "exc_attributes": self._plain_attributes(),
            "notes": self._notes,
            "has_implicit_cause": self._has_implicit_cause,
            "members": self._members,
            "home": self._home,
        }

    def _pickled_exception(self) -> bytes | None:
        # A separate pickle, so that the failure arrives even if the exception cannot be
        # (un)pickled.
        if self._exception is None:
            return None
        try:
            return pickle.dumps(self._exception, pickle.HIGHEST_PROTOCOL)
        except Exception:
            return None


def _all_failures(failure: Failure) -> Iterator[Failure]:
    """Yield a failure, its causes, and the members of all of them."""
    for part in (failure, *failure._causes):
        yield part
        for member in part._members:
            yield from _all_failures(member)


def _captured_members(
    group: BaseException, copies: Mapping[int, BaseException], seen: list[int], depth: int
) -> tuple[Failure, ...]:
    """Return the failures of the members of a group."""
    if depth == _MAX_GROUP_DEPTH:
        return ()
    members = _exception_copies.members_of(group)
    failures = []
    for index, member in enumerate(members):
        if len(seen) >= _exception_copies.MAX_CHAIN:
            failures.append(_omitted(len(members) - index))
            break
        failure = Failure.__new__(Failure)
        tb = _exception_copies.read_attribute(member, "__traceback__")
        failure._describe(member, tb, copies, seen, depth + 1)
        failures.append(failure)
    return tuple(failures)


def _omitted(count: int) -> Failure:
    """Return a failure in place of `count` members of a group."""
    return Failure(
        exception_str=f"{count} more exceptions were omitted", exc_type_names=["Exception"]
    )


@functools.lru_cache(maxsize=1024)
def _type_names(cls: type[Any]) -> tuple[str, ...]:
    end = Exception if issubclass(cls, Exception) else BaseException
    return tuple(object_names.dotted(base) for base in cls.__mro__[: cls.__mro__.index(end) + 1])


def _wrapped_type_names(remote: Failure) -> tuple[str, ...]:
    """Return the type names of the exception that `remote` raised."""
    *names, last = remote._type_names
    wrapped = object_names.dotted(exceptions.WrappedFailure)
    return (*names, last) if wrapped in names else (*names, wrapped, last)


def _safe_repr(value: object) -> str:
    try:
        return repr(value)
    except Exception:
        return f"<{type(value).__name__}>"


def _same_causes(one: Failure, other: Failure) -> bool:
    mine, theirs = (one, *one.causes), (other, *other.causes)
    return len(mine) == len(theirs) and all(map(Failure._same_description, mine, theirs))


def _with_causes(cls: type[Failure], chain: Sequence[Mapping[str, Any]]) -> Failure:
    """Return the failure of the first item of `chain`. Each item is caused by the next one."""
    causes: tuple[Failure, ...] = ()
    for parts in reversed(chain[1:]):
        causes = (Failure(**parts, causes=causes), *causes)
    return cls(**chain[0], causes=causes)


_Pickled = tuple[dict[str, Any], bytes | None, Sequence[tuple[str, int, str]]]


def _unpickle(cls: type[Failure], chain: Sequence[_Pickled]) -> Failure:
    unpickled = _with_causes(cls, [parts for parts, _, _ in chain])
    for failure, (_, data, lines) in zip((unpickled, *unpickled._causes), chain, strict=True):
        members = [member._exception for member in failure._members]
        failure._exception = _exception_copies.with_members(_load(data), members)
        failure._frame_lines = tuple(_exception_copies.FrameLine(*line) for line in lines)
    _exception_copies.link([failure._exception for failure in (unpickled, *unpickled._causes)])
    return unpickled


def _load(data: bytes | None) -> BaseException | None:
    if data is None:
        return None
    try:
        error = pickle.loads(data)
    except Exception:
        return None
    return error if isinstance(error, BaseException) else None


# Descriptions: plain JSON data, which TaskFlow also reads and writes.


def _without_surrogates(text: str) -> str:
    """Return `text` without lone surrogates, which many JSON implementations reject."""
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _all_parts(data: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a description and those of its causes and members."""
    for part in (data, *data.get("causes", ())):
        yield part
        for member in part.get("members", ()):
            yield from _all_parts(member)


def shorten(data: dict[str, Any]) -> None:
    """Shorten a description and those of its causes and members to `MAX_TEXT_LENGTH`."""
    for part in _all_parts(data):
        for key in ("exception_str", "traceback_str"):
            text = part[key]
            if text is not None and len(text) > MAX_TEXT_LENGTH:
                part[key] = f"{text[:MAX_TEXT_LENGTH]}... ({len(text)} characters)"
        for key in ("exc_args", "exc_attributes"):
            values = part.get(key)
            if values and _encoded_length(values) > MAX_TEXT_LENGTH:
                part[key] = type(values)()
        if "notes" in part:
            part["notes"] = _shortened_notes(part["notes"])


def _encoded_length(values: Any) -> int:
    # Attributes that `from_dict` has read may contain lone surrogates.
    return len(json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass"))


def _shortened_notes(notes: Sequence[str]) -> list[str]:
    left = MAX_TEXT_LENGTH
    for index, note in enumerate(notes):
        left -= len(note) + 1
        if left < 0:
            end = f"{note[: len(note) + left]}... ({len(note)} characters)"
            rest = len(notes) - index - 1
            return [*notes[:index], end, *([f"({rest} more notes)"] if rest else ())]
    return list(notes)


def _are_json(args: tuple[Any, ...]) -> bool:
    return all(_is_json(arg, _MAX_ARGS_DEPTH) for arg in args)


def _is_json(value: Any, depth: int) -> bool:
    """Return True if a JSON round trip preserves `value` and its type."""
    kind = type(value)
    if kind is str:
        return bool(value.isascii()) or _without_surrogates(value) == value
    if kind is float:
        return math.isfinite(value)
    if kind is int:
        return bool(value.bit_length() < _MAX_INT_BITS)
    if kind is bool or value is None:
        return True
    if depth == 0:
        return False
    if kind is list:
        return all(_is_json(item, depth - 1) for item in value)
    return kind is dict and all(
        type(key) is str and _is_json(key, 1) and _is_json(item, depth - 1)
        for key, item in value.items()
    )


class _Reader:
    """Reads a description with at most `_MAX_PARTS` causes and members."""

    def __init__(self, read_home: bool) -> None:
        self._parts_left = _MAX_PARTS
        self._read_home = read_home

    def read(self, cls: type[Failure], data: Mapping[str, Any], depth: int) -> Failure:
        chain = (data, *self._causes(data))
        return _with_causes(cls, [self._parts_of(item, depth) for item in chain])

    def _causes(self, data: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """Return all causes of a description, nearest first, however they are nested."""
        limit = min(MAX_CAUSES, self._parts_left)
        flat: list[Mapping[str, Any]] = []
        causes = data.get("causes")
        while causes and len(flat) < limit:
            flat.extend(causes)
            causes = flat[-1].get("causes")
        del flat[limit:]
        self._parts_left -= len(flat)
        return flat

    def _members(self, data: Mapping[str, Any], depth: int) -> Iterator[Failure]:
        members = data.get("members", ()) if depth < _MAX_GROUP_DEPTH else ()
        for index, member in enumerate(members):
            if self._parts_left == 0:
                yield _omitted(len(members) - index)
                return
            self._parts_left -= 1
            yield self.read(Failure, member, depth + 1)

    def _parts_of(self, data: Mapping[str, Any], depth: int) -> dict[str, Any]:
        return {
            "exception_str": data["exception_str"],
            "exc_type_names": data.get("exc_type_names", ()),
            "traceback_str": data.get("traceback_str"),
            "exc_args": data.get("exc_args"),
            "exc_attributes": data.get("exc_attributes"),
            "notes": data.get("notes"),
            "has_implicit_cause": data.get("has_implicit_cause"),
            "members": self._members(data, depth),
            "home": data.get("home") if self._read_home else None,
        }
