"""Tracebacks without the frames of this package, for failures of the user's own code."""

from __future__ import annotations

import functools
import os
import sysconfig
import traceback
from collections.abc import Sequence
from typing import Any, Final

from wbengine import exceptions
from wbengine.types import _failure_text

__all__ = ["described", "innermost", "only_user_frames", "traceback_text"]

_PACKAGE: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
#: The modules that call the methods of tasks and retries, and the functions of workflows.
_CALLERS: Final = (
    "_calls/invocation.py", "_runtime/retry_controllers.py", "_runtime/retry_delays.py",
    "_runtime/workflows/thread_program.py",
)  # fmt: skip
_ENTRY: Final = '  File "'
_LIBRARY: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib")})
_INSTALLED: Final = tuple({sysconfig.get_path(name) + os.sep for name in ("purelib", "platlib")})


def only_user_frames(text: str) -> str:
    """Return only the entries of the user's code from the text of a traceback.

    The text is returned unchanged if no method of a task or retry was called.
    """
    entries = f"\n{text}".split(f"\n{_ENTRY}")[1:]
    files = [entry.partition('"')[0] for entry in entries]
    chosen = [f"{_ENTRY}{entries[number]}" for number in _user_frame_indexes(files)]
    return "\n".join(chosen) if len(chosen) < len(entries) else text


def described(
    failure: Any, describe: _failure_text.Describe = _failure_text.described
) -> tuple[str, str]:
    """Describe a failure for `_failure_text.text_of`, with only entries of the user's code."""
    entries, text = describe(failure)
    return only_user_frames(entries.rstrip("\n")), text


def traceback_text(error: BaseException) -> str:
    """Return the exception and its causes as Python prints them.

    If a task or retry raised an exception, only frames of the user's code are included. A
    `WrappedFailure` is replaced by its failures.
    """
    if isinstance(error, exceptions.WrappedFailure):
        return "\n".join(f"{_failure_text.text_of(each, described)}\n" for each in error)
    whole = traceback.TracebackException.from_exception(error)
    pending: list[traceback.TracebackException | None] = [whole]
    while pending:
        each = pending.pop()
        if each is not None:
            frames = list(each.stack)
            chosen = _user_frame_indexes([frame.filename for frame in frames])
            each.stack = traceback.StackSummary.from_list([frames[number] for number in chosen])
            pending += [
                each.__cause__,
                each.__context__,
                *(getattr(each, "exceptions", None) or ()),
            ]
    return "".join(whole.format())


def innermost(error: BaseException) -> str | None:
    """Return where the user's code caused an exception: 'shop.py, line 12, in order', or None."""
    frames = [
        frame
        for frame in traceback.StackSummary.extract(traceback.walk_tb(error.__traceback__))
        if not _is_of_library(frame.filename)
    ]
    own = [frame for frame in frames if not frame.filename.startswith(_INSTALLED)]
    for frame in (own or frames)[-1:]:
        return f"{os.path.basename(frame.filename)}, line {frame.lineno}, in {frame.name}"
    return None if error.__cause__ is None else innermost(error.__cause__)


def _is_of_library(file: str) -> bool:
    if file.startswith("<") or _path_in_package(file) is not None:
        return True
    return file.startswith(_LIBRARY) and not file.startswith(_INSTALLED)


def _user_frame_indexes(files: Sequence[str]) -> list[int]:
    """Return the positions of the user's frames, or all of them if no task or retry was called."""
    inside = [_path_in_package(file) for file in files]
    calls = [number for number, name in enumerate(inside) if name in _CALLERS]
    first = calls[-1] + 1 if calls else len(files)
    return [number for number in range(first, len(files)) if inside[number] is None] or list(
        range(len(files))
    )


@functools.lru_cache(maxsize=1024)
def _path_in_package(file: str) -> str | None:
    """Return the path of a module relative to this package, or None if it is another module."""
    _, package_part, name = file.replace(os.sep, "/").rpartition("/wbengine/")
    return name if package_part and os.path.exists(os.path.join(_PACKAGE, name)) else None
