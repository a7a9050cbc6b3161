"""Copies of exceptions that do not keep frames alive.

The traceback of an exception refers to frames, and frames refer to local variables, so a stored
exception would keep all of them alive. The traceback must not be removed, because the user may log
or re-raise the exception. The frames cannot be cleared (`traceback.clear_frames`), because frames
of the engine still run.

Therefore a failure contains a copy of the exception: an object of the same class with the same
attributes and an empty traceback. The lines of the original traceback are stored as text. If
needed, they are converted into a traceback of stand-in frames.
"""

from __future__ import annotations

import functools
import itertools
import traceback
import types
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

#: Maximum number of exceptions of a chain. Chains may be circular or very long.
MAX_CHAIN: Final = 100
#: Maximum numbers of stored lines of a traceback, at its start and at its end.
_KEEP_FIRST, _KEEP_LAST = 32, 160
_HEAP_TYPE: Final = 1 << 9
_POINTER: Final = 8


class FrameLine(NamedTuple):
    """A line of code that an exception passed."""

    filename: str
    line: int
    function: str


def frame_lines_of(tb: types.TracebackType | None) -> tuple[FrameLine, ...]:
    """Return the lines of `tb`, oldest call first. Very deep tracebacks lose their middle."""
    lines: list[FrameLine] = []
    while tb is not None:
        code = tb.tb_frame.f_code
        lines.append(FrameLine(code.co_filename, tb.tb_lineno or code.co_firstlineno, code.co_name))
        tb = tb.tb_next
    if len(lines) > _KEEP_FIRST + _KEEP_LAST:
        omitted_count = len(lines) - _KEEP_FIRST - _KEEP_LAST
        gap = FrameLine("<...>", 0, f"{omitted_count} more calls")
        return (*lines[:_KEEP_FIRST], gap, *lines[-_KEEP_LAST:])
    return tuple(lines)


def format_frame_lines(lines: tuple[FrameLine, ...]) -> str:
    """Return the text of a traceback without its first line."""
    summary = traceback.StackSummary.from_list(
        traceback.FrameSummary(line.filename, line.line, line.function, lookup_line=False)
        for line in lines
    )
    return "".join(summary.format())


@functools.lru_cache(maxsize=512)
def _frame(filename: str, function: str) -> types.FrameType:
    namespace: dict[str, Any] = {"__name__": function, "__builtins__": {}}
    exec(compile("def stand_in():\n yield", filename, "exec"), namespace)
    code = namespace.pop("stand_in").__code__.replace(co_name=function)
    # The frame of a generator that never ran. Other frames would keep their callers alive.
    frame: types.FrameType = types.FunctionType(code, namespace)().gi_frame
    return frame


def traceback_of(lines: tuple[FrameLine, ...]) -> types.TracebackType | None:
    """Return a traceback that prints like the original. Its stand-in frames have no variables."""
    tb: types.TracebackType | None = None
    for line in reversed(lines):
        tb = types.TracebackType(tb, _frame(line.filename, line.function), -1, line.line)
    return tb


def set_traceback(error: BaseException, lines: tuple[FrameLine, ...]) -> None:
    """Set the traceback of a copy, unless it has one."""
    if read_attribute(error, "__traceback__") is None:
        _set(error, "__traceback__", traceback_of(lines))


#: Reads attributes of exceptions without the `__getattribute__` of their class.
read_attribute: Final = BaseException.__getattribute__


def cause_of(error: BaseException) -> BaseException | None:
    """Return the cause of `error`, otherwise its context unless it is suppressed."""
    cause: BaseException | None = read_attribute(error, "__cause__")
    if cause is not None or read_attribute(error, "__suppress_context__"):
        return cause
    context: BaseException | None = read_attribute(error, "__context__")
    return context


def chain_of(error: BaseException, seen: list[int]) -> list[BaseException]:
    """Return `error` and its causes.

    `seen` contains the ids of all exceptions of the same failure; those of the chain are added.
    Causes that are in `seen` are omitted, and those after `MAX_CHAIN` exceptions.
    """
    chain = [error]
    seen.append(id(error))
    following = cause_of(error)
    while following is not None and id(following) not in seen and len(seen) < MAX_CHAIN:
        chain.append(following)
        seen.append(id(following))
        following = cause_of(following)
    return chain


def notes_of(error: BaseException) -> tuple[str, ...]:
    notes = read_attribute(error, "__dict__").get("__notes__")
    if not isinstance(notes, list | tuple):
        return ()
    return tuple([note for note in notes if isinstance(note, str)])


def members_of(error: BaseException) -> tuple[BaseException, ...]:
    """Return the exceptions of a group, () for other exceptions."""
    if not isinstance(error, BaseExceptionGroup):
        return ()
    # Not the attribute of a subclass.
    members: tuple[BaseException, ...] = vars(BaseExceptionGroup)["exceptions"].__get__(error)
    return members


_set: Final = BaseException.__setattr__


def copy_of(
    error: BaseException, copies: dict[int, BaseException], left: int = MAX_CHAIN
) -> BaseException:
    """Return a copy of `error`, its causes and the exceptions among its attributes.

    `copies` maps the ids of originals to copies. Causes are copied up to a depth of `left`. If an
    exception cannot be copied exactly, the original is used, with its frames.
    """
    if id(error) not in copies:
        # A placeholder that ends the recursion, because exceptions may refer to each other.
        copies[id(error)] = error
        try:
            _copy(error, copies, left - 1)
        except Exception:
            copies[id(error)] = error
    return copies[id(error)]


def with_members(
    error: BaseException | None, members: Sequence[BaseException | None]
) -> BaseException | None:
    """Return the group `error` with other `members`, because pickles of members lose causes.

    If a member is None, the group keeps its own. Other exceptions are returned as they are.
    """
    if error is None or not members:
        return error
    pairs = zip(members_of(error), members, strict=False)
    return copy_of(error, {id(old): new for old, new in pairs if new is not None})


def link(chain: Sequence[BaseException | None]) -> None:
    """Make each exception of `chain` the cause of the previous one, because pickles lose causes."""
    for error, following in itertools.pairwise(chain):
        if error is not None and following is not None and cause_of(error) is None:
            _set(error, "__cause__", following)


def builtin_base(cls: type[Any]) -> type[Any]:
    """Return the first class in the order of `cls` that is not written in Python."""
    return next(base for base in cls.__mro__ if not base.__flags__ & _HEAP_TYPE)


class _CopyPlan(NamedTuple):
    base: type[BaseException]
    fields: tuple[str, ...]


#: C-level fields to skip: they are set with `args`, keep objects alive, or have no setter.
_SKIPPED: Final = frozenset({"args", "obj", "message", "exceptions", "characters_written"})


@functools.lru_cache(maxsize=1024)
def _copy_plan(cls: type[Any]) -> _CopyPlan | None:
    """Return how to copy an instance of `cls`, or None if Python cannot access its state."""
    base = builtin_base(cls)
    if base.__module__ != "builtins" or not issubclass(base, BaseException):
        return None
    fields: list[str] = []
    slots = 0
    for member in cls.__mro__:
        for name, value in vars(member).items():
            if not isinstance(value, types.MemberDescriptorType | types.GetSetDescriptorType):
                continue
            slots += bool(member.__flags__ & _HEAP_TYPE)
            if not name.startswith("__") and name not in _SKIPPED:
                fields.append(name)
    # A class of an extension may have state that Python cannot access.
    if cls.__basicsize__ > base.__basicsize__ + _POINTER * (slots + 2):
        return None
    return _CopyPlan(base, tuple(fields))


def _copy(error: BaseException, copies: dict[int, BaseException], left: int) -> None:
    plan = _copy_plan(type(error))  # type: ignore[arg-type]
    if plan is None:
        return
    base, fields = plan

    def inside(value: Any) -> Any:
        """Copy exceptions among the attributes too, because they refer to frames."""
        if not isinstance(value, BaseException) or left <= 0:
            return value
        return copy_of(value, copies, left)

    copied: BaseException
    if hasattr(base, "derive"):
        message, members = error.args
        copied = base.__new__(type(error), message, [inside(member) for member in members])
    else:
        copied = base.__new__(type(error))
    if type(copied) is not type(error):
        return
    copies[id(error)] = copied
    if not hasattr(base, "derive"):
        copied.args = tuple(map(inside, error.args))
    for field in fields:
        try:
            value: Any = getattr(error, field)
        except AttributeError:
            continue
        # An unset field reads as None, but must not be set to None.
        if value is not None:
            object.__setattr__(copied, field, inside(value))
    copied.__dict__.update((name, inside(value)) for name, value in error.__dict__.items())
    if isinstance(notes := copied.__dict__.get("__notes__"), list):
        copied.__dict__["__notes__"] = list(notes)
    following = cause_of(error)
    if following is not None:
        attribute = "__context__" if read_attribute(error, "__cause__") is None else "__cause__"
        _set(copied, attribute, inside(following) if left > 0 else None)
    _set(copied, "__suppress_context__", read_attribute(error, "__suppress_context__"))
