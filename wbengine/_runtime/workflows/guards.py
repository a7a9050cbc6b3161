"""Warnings for authors of workflows whose functions cannot be repeated, or block the engine."""

from __future__ import annotations

import builtins
import dis
import inspect
import itertools
import logging
import sys
import types
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from wbengine import task
from wbengine._introspection import object_names

__all__ = ["MAX_TURN_SECONDS", "Use", "check_code", "check_turn", "loaded_objects", "uses"]

LOG: Final = logging.getLogger(__name__)

#: Maximum time that an `async` function may run without a warning until it awaits a step.
MAX_TURN_SECONDS: Final = 1.0

_STEP: Final = "a step"

#: Objects whose use a replay cannot repeat, with their replacements.
_REPLACEMENTS: Final[Mapping[str, Iterable[str]]] = {
    "steps.now()": (
        "time.time", "time.time_ns", "time.monotonic", "time.monotonic_ns", "time.perf_counter",
        "time.perf_counter_ns", "datetime.datetime.now", "datetime.datetime.utcnow",
        "datetime.date.today",
    ),
    "steps.sleep()": ("time.sleep", "asyncio.sleep"),
    "steps.random()": (
        "random.betavariate", "random.choice", "random.choices", "random.expovariate",
        "random.gauss", "random.getrandbits", "random.normalvariate", "random.randbytes",
        "random.randint", "random.random", "random.randrange", "random.sample", "random.seed",
        "random.shuffle", "random.triangular", "random.uniform",
    ),
    "steps.uuid4()": ("uuid.uuid1", "uuid.uuid4"),
    _STEP: (
        "random.SystemRandom", "secrets.SystemRandom", "secrets.choice", "secrets.randbelow",
        "secrets.randbits", "secrets.token_bytes", "secrets.token_hex", "secrets.token_urlsafe",
        "os.urandom", "builtins.open", "builtins.input",
        "threading.Thread", "threading.Timer", "threading.Lock", "threading.RLock",
        "threading.Condition", "threading.Event", "threading.Semaphore",
        "threading.BoundedSemaphore", "threading.Barrier",
        "concurrent.futures.thread.ThreadPoolExecutor",
        "concurrent.futures.process.ProcessPoolExecutor",
        "multiprocessing.Process", "multiprocessing.Pool",
        "subprocess.Popen", "subprocess.call", "subprocess.check_call",
        "subprocess.check_output", "subprocess.run",
        "socket.create_connection", "socket.socket", "urllib.request.urlopen",
        *(
            f"{client}.{name}"
            for client in ("requests", "httpx")
            for name in ("delete", "get", "head", "options", "patch", "post", "put", "request")
        ),
        "requests.Session", "httpx.Client", "httpx.AsyncClient",
    ),
}  # fmt: skip

_LOADS: Final = frozenset({"LOAD_GLOBAL", "LOAD_DEREF"})
_ATTRIBUTES: Final = frozenset({"LOAD_ATTR", "LOAD_METHOD"})

#: Functions that `check_code` has checked.
_checked: Final[weakref.WeakSet[Callable[..., Any]]] = weakref.WeakSet()
#: Functions that `check_turn` has reported.
_blocking: Final[weakref.WeakSet[Callable[..., Any]]] = weakref.WeakSet()


class Use(NamedTuple):
    """The use of a function or class that a workflow must not call."""

    name: str
    replacement: str
    line: int
    reason: str = "which a replay cannot repeat"


def check_code(function: Callable[..., Any]) -> None:
    """Warn about each forbidden use in the code of a workflow's function, once in a process."""
    if function in _checked:
        return
    _checked.add(function)
    for use in uses(function):
        warnings.warn_explicit(
            f"Workflow {object_names.dotted(function)!r} uses {use.name} in line {use.line},"
            f" {use.reason}: use {use.replacement} instead",
            RuntimeWarning,
            inspect.unwrap(function).__code__.co_filename,
            use.line,
            function.__module__,
        )


def check_turn(function: Callable[..., Any], seconds: float) -> None:
    """Warn, once for each function, if an `async` function ran too long until it awaited a step."""
    if seconds <= MAX_TURN_SECONDS or function in _blocking:
        return
    _blocking.add(function)
    LOG.warning(
        "The function of workflow %r ran for %.1f s without awaiting a step, and blocked the"
        " engine: move slow work into a step",
        object_names.dotted(function),
        seconds,
    )


def uses(function: Callable[..., Any]) -> list[Use]:
    """Return the forbidden uses in a function and in the functions inside it.

    Each object is returned once. Code that the function calls is not examined.
    """
    forbidden = _forbidden_objects()
    unique: dict[str, Use] = {}
    for value, line, is_called in loaded_objects(function):
        if is_called and isinstance(value, type) and issubclass(value, task.Task):
            name = f"{value.__name__}()"
            replacement = f"steps.run({value.__name__}, ...)"
            unique.setdefault(name, Use(name, replacement, line, "which only creates a task"))
        elif id(value) in forbidden:
            name, replacement = forbidden[id(value)]
            unique.setdefault(name, Use(name, replacement, line))
    return list(unique.values())


def loaded_objects(function: Callable[..., Any]) -> Iterator[tuple[Any, int, bool]]:
    """Yield the objects that a function loads, with their lines, and whether it calls a global one.

    These are global variables, variables of enclosing functions, attributes of both, and what the
    function imports from loaded modules.
    """
    body: Any = inspect.unwrap(function)
    closure = {
        name: cell.cell_contents
        for name, cell in zip(body.__code__.co_freevars, body.__closure__ or (), strict=True)
        if _has_content(cell)
    }
    yield from _loaded(body.__code__, {**vars(builtins), **body.__globals__}, closure)


def _loaded(
    code: types.CodeType, names: Mapping[str, Any], closure: Mapping[str, Any]
) -> Iterator[tuple[Any, int, bool]]:
    value: Any = None
    for instruction, following in itertools.pairwise((*dis.get_instructions(code), None)):
        assert instruction is not None
        if instruction.opname in _LOADS:
            scope = names if instruction.opname == "LOAD_GLOBAL" else closure
            value = scope.get(instruction.argval)
        elif instruction.opname in _ATTRIBUTES and isinstance(value, types.ModuleType | type):
            value = inspect.getattr_static(value, instruction.argval, None)
        elif instruction.opname == "IMPORT_NAME":
            value = _imported(instruction.argval, names.get("__package__"))
        elif instruction.opname == "IMPORT_FROM" and isinstance(value, types.ModuleType):
            submodule = inspect.getattr_static(value, instruction.argval, None)
            if isinstance(submodule, types.ModuleType):
                yield submodule, code.co_firstlineno, False
            continue
        else:
            value = None
            continue
        positions = instruction.positions
        # The lowest bit is set if the instruction prepares a call, also that of an attribute.
        is_called = instruction.opname == "LOAD_GLOBAL" and bool((instruction.arg or 0) & 1)
        is_called = is_called and following is not None and following.opname not in _ATTRIBUTES
        yield value, (positions and positions.lineno) or code.co_firstlineno, is_called
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            own = constant.co_cellvars
            inner = {name: each for name, each in closure.items() if name not in own}
            yield from _loaded(constant, names, inner)


def _imported(name: str, package: str | None) -> types.ModuleType | None:
    """Return the loaded module of an absolute import, or of a relative one in the same package."""
    relative = f"{package}.{name}" if name else package
    return sys.modules.get(name) or sys.modules.get(relative or "")


def _forbidden_objects() -> dict[int, tuple[str, str]]:
    """Return name and replacement of the forbidden objects in loaded modules, by `id`."""
    forbidden: dict[int, tuple[str, str]] = {}
    for replacement, paths in _REPLACEMENTS.items():
        for path in paths:
            value = _static_value(path)
            if value is not None:
                forbidden.setdefault(id(value), (path.removeprefix("builtins."), replacement))
    return forbidden


def _static_value(path: str) -> Any:
    parts = path.split(".")
    for count in range(len(parts) - 1, 0, -1):
        value: Any = sys.modules.get(".".join(parts[:count]))
        if value is not None:
            for name in parts[count:]:
                value = inspect.getattr_static(value, name, None)
            return value
    return None


def _has_content(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True
