"""Exceptions that `Failure.reraise` raises for a received or stored description, and their classes.

A failure from a message or store has no exception. `reraise` then raises a `WrappedFailure`, as
code written for TaskFlow expects. If allowed, this is also an instance of the original type, so
that `except ValueError` catches it.

For security, descriptions must not select code. A name therefore refers only to a class that is
already imported and is one of these: a builtin, an error of this package, a class in the module of
the failed task, or a class permitted by `allow`. If the class of the exception is none of these,
its nearest base class that is one determines the type.

Not supported: classes that are not an `Exception` (`SystemExit`, `KeyboardInterrupt`, ...), because
an exception that ended a remote task must not end this process; groups whose members were not sent;
classes that cannot be subclassed.
"""

from __future__ import annotations

import builtins
import functools
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol, TypeVar, cast

from wbengine import exceptions
from wbengine._introspection import object_names
from wbengine.types import _exception_attributes, _exception_copies

_A = TypeVar("_A")

_FAILURES_ATTRIBUTE: Final = "_WrappedFailure__failures"
_DOTTED: Final = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*")

#: Dotted names of allowed classes, or of modules whose classes and submodules are allowed.
_allowed: Final[set[str]] = {exceptions.__name__}
#: Classes passed to `allow`. Some have no importable name, for example classes in a function.
_classes: Final[dict[str, type[BaseException]]] = {}


def allow(what: _A) -> _A:
    """Allow failures without an exception to raise these types in this process. Thread-safe.

    :param what: an exception class (this function is also a decorator), a module with all its
        classes and submodules, or the dotted name of either. Names are not imported.
    :returns: `what`.
    :raises TypeError: if `what` is anything else.
    :raises ValueError: if it is a string but not a dotted name.
    """
    if isinstance(what, types.ModuleType):
        _allowed.add(what.__name__)
    elif isinstance(what, type) and issubclass(what, BaseException):
        _classes[object_names.dotted(what)] = what
    elif not isinstance(what, str):
        raise TypeError(
            f"only exception classes and modules (or their names) can be allowed, got {what!r}"
        )
    elif _DOTTED.fullmatch(what):
        _allowed.add(what)
    else:
        raise ValueError(
            f"An allowed name must be 'package.module' or 'package.module.Name', got {what!r}"
        )
    return what


def find(name: str, home: str | None) -> type[BaseException] | None:
    """Return the class with this name if it is allowed. `home` is the module of the task."""
    cls = _classes.get(name)
    if cls is not None:
        return cls
    parts = name.split(".")
    if len(parts) == 1:
        module: Any = builtins
    else:
        length = next(
            (n for n in range(len(parts) - 1, 0, -1) if ".".join(parts[:n]) in sys.modules), 0
        )
        module_name = ".".join(parts[:length])
        if not length or not (module_name == home or _is_allowed(parts)):
            return None
        module, parts = sys.modules[module_name], parts[length:]
    value: Any = module
    for part in parts:
        # Not `getattr`, because modules and metaclasses may run code in it.
        value = getattr(value, "__dict__", {}).get(part)
    if isinstance(value, type) and issubclass(value, BaseException):
        return value if object_names.dotted(value) == name else None
    return None


def _is_allowed(parts: list[str]) -> bool:
    return any(".".join(parts[:n]) in _allowed for n in range(len(parts), 0, -1))


class Description(Protocol):
    """The description of an exception: a `failure.Failure`, whose names iteration yields."""

    def __iter__(self) -> Iterator[str]: ...

    @property
    def exception_str(self) -> str: ...

    @property
    def exception_args(self) -> tuple[Any, ...]: ...

    @property
    def notes(self) -> Sequence[str]: ...

    @property
    def causes(self) -> Sequence[Description]: ...

    @property
    def members(self) -> Sequence[Description]: ...

    @property
    def home(self) -> str | None: ...

    def _plain_attributes(self) -> Mapping[str, Any]: ...


class RemoteError(exceptions.WrappedFailure):
    """The base of types that are both a `WrappedFailure` and the original type.

    The state of the original exception was not sent. Creating the type and raising, printing,
    comparing, copying or pickling an instance therefore runs no code of the original. Methods and
    properties of the original may fail because attributes are missing.
    """

    original: ClassVar[type[BaseException]]

    def __init_subclass__(cls, **options: Any) -> None:
        pass  # Not passed on, because the original may register or reject its subclasses.

    __getattribute__ = BaseException.__getattribute__
    __setattr__ = BaseException.__setattr__
    __delattr__ = BaseException.__delattr__
    __repr__ = BaseException.__repr__
    __eq__ = BaseException.__eq__
    __ne__ = BaseException.__ne__
    __hash__ = BaseException.__hash__
    __format__ = BaseException.__format__
    __dir__ = BaseException.__dir__

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        """Return the message of the original exception."""
        return next(iter(self)).exception_str  # type: ignore[no-any-return]

    if not TYPE_CHECKING:  # Otherwise type checkers would accept every attribute.

        def __getattr__(self, name: str) -> Any:
            raise AttributeError(
                f"{name!r} of the original {object_names.dotted(self.original)} is not"
                " available: only the type, the message, notes, members, plain arguments and"
                " attributes of builtin types are transferred"
            )

    def __reduce__(self) -> tuple[Any, ...]:
        extra = {key: value for key, value in self.__dict__.items() if key != _FAILURES_ATTRIBUTE}
        return _unpickle, (tuple(self), self.args), extra or None

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        return self.__reduce__()

    def __setstate__(self, state: Any) -> None:
        self.__dict__.update(state)


@functools.lru_cache(maxsize=1024)
def type_for(original: type[BaseException]) -> type[RemoteError] | None:
    """Return a type that is a `WrappedFailure` and an `original`, or None if this is impossible."""
    if not issubclass(original, Exception):
        return None
    if original is Exception or issubclass(original, exceptions.WrappedFailure):
        return None  # A plain `WrappedFailure` is an Exception already.
    namespace = {
        "__module__": exceptions.__name__,
        "__qualname__": f"WrappedFailure[{original.__qualname__}]",
        "__doc__": f"The local form of a remote {object_names.dotted(original)}.",
        "original": original,
    }
    try:
        # Bypass code that a metaclass of the original runs when a class is created.
        wrapped_type = type.__new__(
            type(original), "WrappedFailure", (RemoteError, original), namespace
        )
    except Exception:
        return None
    return cast(type[RemoteError], wrapped_type)


def remote_error(failure: Description) -> exceptions.WrappedFailure:
    """Return a new exception for `failure` with its causes, or a plain `WrappedFailure`."""
    error = _error_of(failure)
    if isinstance(error, RemoteError):
        last: BaseException = error
        for cause in failure.causes:
            last.__cause__ = following = _error_of(cause)
            last = following
    return error


def _error_of(failure: Description) -> exceptions.WrappedFailure:
    kind, message = _type_of(failure), failure.exception_str
    attributes = failure._plain_attributes()
    args = failure.exception_args or ((message,) if message else ())
    if kind is not None and issubclass(kind, BaseExceptionGroup):
        args = attributes.get("message", message), [remote_error(each) for each in failure.members]
    elif kind is not None and not failure.exception_args:
        args = _exception_attributes.unicode_args(kind, attributes) or args
    remote = None if kind is None else _instance_of(kind, args)
    error = exceptions.WrappedFailure([failure]) if remote is None else remote
    for note in failure.notes:
        BaseException.add_note(error, note)  # Not the method of a subclass.
    if remote is None:
        return error
    exceptions.WrappedFailure.__init__(error, [failure])
    _exception_attributes.write(error, attributes)
    if isinstance(error, SyntaxError) and error.msg is None:
        error.msg = message  # Otherwise the printed error would lack its details.
    error.args = args
    return error


def _type_of(failure: Description) -> type[RemoteError] | None:
    """Return the type for the first name of a class that is allowed and can be raised."""
    for name in failure:
        original = find(name, failure.home) if isinstance(name, str) else None
        try:
            kind = None if original is None else type_for(original)  # type: ignore[arg-type]
        except Exception:  # A metaclass may create classes that are not hashable.
            continue
        if kind is not None:
            return kind
    return None


def _instance_of(kind: type[RemoteError], args: tuple[Any, ...]) -> RemoteError | None:
    """Create an instance with the attributes that builtin types derive from arguments (`errno`)."""
    base: Any = _exception_copies.builtin_base(kind)
    if issubclass(base, SyntaxError):
        args = args[:1]  # Printing depends on the types of the others.
    for constructor_args in (args, ()):
        try:
            error: Any = base.__new__(kind, *constructor_args)
        except Exception:
            continue
        try:
            base.__init__(error, *constructor_args)
        except Exception:
            pass
        return error if type(error) is kind else None
    return None


def _unpickle(failures: Iterable[Any], args: tuple[Any, ...]) -> exceptions.WrappedFailure:
    """Unpickle. Another process may allow other types."""
    failure_list = list(failures)
    error = (
        remote_error(failure_list[0])
        if len(failure_list) == 1
        else exceptions.WrappedFailure(failure_list)
    )
    if isinstance(error, RemoteError):
        error.args = args
    return error
