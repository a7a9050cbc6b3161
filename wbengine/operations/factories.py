"""Flows by the name of what makes them: `MODULE:FACTORY`."""

from __future__ import annotations

import importlib
from typing import Any

from wbengine import _names, exceptions
from wbengine import flow as flow_module
from wbengine import task as task_module

__all__ = ["flow_of"]


def flow_of(path: str) -> Any:
    """The flow (or task) behind `'package.module:name'`: a function that makes it, or itself.

    What is raised inside of the module or the function goes through as it is.

    :raises ValueError: `path` is not of that form.
    :raises ImportError: there is no such module, or it has no such name.
    :raises NotAFlow: that makes no flow.
    """
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"{path!r} is not of the form MODULE:FACTORY{_offer(module)}")
    try:
        found = _names.load(path)
    except ModuleNotFoundError as error:
        raise _missing(module, error) from error
    if isinstance(found, flow_module.Flow | task_module.Task):
        return found
    if not callable(found):
        raise exceptions.NotAFlow(
            f"{path!r} is neither a flow nor a function that makes one, but {found!r:.80}"
        )
    made = found()
    if not isinstance(made, flow_module.Flow | task_module.Task):
        raise exceptions.NotAFlow(f"{path}() made neither a flow nor a task, but {made!r:.80}")
    return made


def _missing(module: str, error: ModuleNotFoundError) -> ImportError:
    if error.name is not None and (module == error.name or module.startswith(f"{error.name}.")):
        return ImportError(f"there is no module {error.name!r} (here, or on $PYTHONPATH)")
    return error


def _offer(module: str) -> str:
    """Which flows the module has, if it is one."""
    try:
        names = vars(importlib.import_module(module)).items()
    except Exception:
        return ""
    kinds = (flow_module.Flow, task_module.Task)
    found = [f"{module}:{name}" for name, value in names if isinstance(value, kinds)]
    return f"; there is {', '.join(found[:5])}" if found else ""
