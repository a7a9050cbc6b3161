"""Tags of members and instances of allowed classes."""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

from wbengine._introspection import annotated
from wbengine.types._encoding import annotated_classes, kinds, walk
from wbengine.types._encoding.forms import Enumeration, Fields, Form, NamedTuples
from wbengine.types._encoding.walk import EncodingError, Parts, Tag

if TYPE_CHECKING:
    from wbengine.types._encoding.undecoded import Keeper

_Reader = Callable[[Parts, int], Any]

#: Whether values of unknown classes are decoded to plain values.
shows_unknown: Final = contextvars.ContextVar("shows_unknown", default=False)
#: Keeps values as they are encoded, instead of decoding them.
keeper: Final[contextvars.ContextVar[Keeper | None]] = contextvars.ContextVar(
    "keeper", default=None
)


#: The form of each allowed class, by its dotted name.
ALLOWED: Final[dict[str, Form]] = {}
_FORMS: Final[dict[type, Form]] = {}
_reading = threading.RLock()


def allow(cls: Any) -> None:
    """Allow the values of a class.

    A class replaces an earlier one with the same name, as after a reload of its module.

    :raises TypeError: see `wbengine.types.codec.allow`.
    """
    form = _form_of(cls)
    if form is None:
        raise TypeError(f"allowed class must be {kinds.ALLOWABLE}, got {cls!r}")
    replaced_form = ALLOWED.get(form.name)
    ALLOWED[form.name] = form
    _FORMS[cls] = form
    annotated.note(cls)
    walk.BY_CLASS[cls] = _TAGS[form.tag]
    if replaced_form is not None and replaced_form.cls is not cls:
        walk.BY_CLASS.pop(replaced_form.cls, None)
        _FORMS.pop(replaced_form.cls, None)


def _form_of(cls: Any) -> Form | None:
    kind = kinds.of_class(cls)
    if kind == kinds.ENUM:
        return Enumeration(cls)
    if kind == kinds.NAMED_TUPLE:
        return NamedTuples(cls, cls._fields)
    if kind == kinds.DATACLASS:
        return Fields(cls, [field.name for field in dataclasses.fields(cls)])
    if kind is None:
        return None
    from wbengine.types._encoding import libraries

    return libraries.form_of(cls, kind)


def _renew_lock() -> None:
    """Replace the lock in a forked process, in which no thread would release it."""
    global _reading
    _reading = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_renew_lock)


def contents(value: Any) -> dict[str, Any]:
    """Return the named values in an instance of an allowed class, or an empty dict."""
    form = _FORMS.get(type(value))
    return {} if form is None else form.contents(value)


def read_annotations() -> None:
    """Allow the classes that annotations name, if these were not read yet."""
    # The lock is entered also without new annotations: another thread may be reading them.
    with _reading:
        while items := annotated.take():
            for item in items:
                for cls in annotated_classes.classes_of(item):
                    if cls not in _FORMS:
                        with contextlib.suppress(TypeError):
                            allow(cls)


def _find(cls: type) -> None:
    if kinds.of_class(cls) is not None:
        read_annotations()


walk.FINDERS.append(_find)


def _reader(tag: str, show: _Reader) -> _Reader:
    """Return the decoder of a tag.

    :param show: decodes a value to be shown, if its class is unknown or refuses it.
    """

    def read(parts: Parts, depth_left: int) -> Any:
        kept_by = keeper.get()
        form = None
        if kept_by is None or kept_by.unknown_only:
            form = _known_form(parts, tag)
        if form is None:
            return show(parts, depth_left) if kept_by is None else kept_by.keep(tag, parts)
        try:
            return form.read(parts, depth_left)
        except (ValueError, TypeError, LookupError):
            if shows_unknown.get():
                return show(parts, depth_left)
            raise

    return read


def _show_member(parts: Parts, depth_left: int) -> str:
    return f"{parts['c']}.{parts['v']}" if "v" in parts else f"{parts['c']}({parts['n']})"


def _show_fields(parts: Parts, depth_left: int) -> dict[str, Any]:
    return walk.unpack_attributes(parts["v"], depth_left)


def _show_text(parts: Parts, depth_left: int) -> str:
    return walk.text(parts)


def _known_form(parts: Parts, tag: str) -> Form | None:
    """Return the form of the class in `parts`, or None to show or keep the value."""
    name = parts["c"]
    form = ALLOWED.get(name) if isinstance(name, str) else None
    if form is None and isinstance(name, str):
        read_annotations()
        form = ALLOWED.get(name)
    if form is None:
        if isinstance(name, str) and (shows_unknown.get() or keeper.get() is not None):
            return None
        raise EncodingError(
            f"class {name!r:.200} is not known in this process: import the module that defines"
            " it and names it in the annotations of a task, or passes it to"
            " wbengine.types.codec.allow (commands: option -I MODULE)",
            is_of_code=True,
        )
    if form.tag != tag:
        raise ValueError(f"class {name!r} has another kind")
    return form


def _write(value: Any, depth_left: int) -> Parts:
    return _FORMS[type(value)].write(value, depth_left)


_DATA_KEYS: Final = frozenset({"c", "v", "extra", "unset", "private"})
_TAGS: Final[dict[str, Tag]] = {
    "enum": Tag(
        "enum", _write, _reader("enum", _show_member), frozenset({"c", "v", "n"}), is_of_code=True
    ),
    "data": Tag(
        "data", _write, _reader("data", _show_fields), _DATA_KEYS, levels=2, is_of_code=True
    ),
    "text": Tag(
        "text", _write, _reader("text", _show_text), frozenset({"c", "v"}), is_of_code=True
    ),
}
walk.BY_NAME.update(_TAGS)
