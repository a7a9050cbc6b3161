"""Flows and workflows with typical faults, and right ones that do the same kinds of work.

Each module `faulty_NN_name` has one fault, which its docstring explains. The modules
`right_NN_name` leave nothing done twice and nothing behind, whatever fails. Each module defines:

- `flow`: a function without arguments that returns a flow, or a workflow.
- `INPUTS`: the inputs of the flow.
- `WORLDS`: the outside systems that the flow changes.
- `SIGNALS` (optional): the values of the signals for which the flow waits, by name.
- `EXCEPTIONS` (optional): the exceptions that the service of a task raises, by name of the task.
"""

from __future__ import annotations

import importlib
import pkgutil
import types


def modules() -> list[types.ModuleType]:
    """Return all modules of the corpus, the faulty ones first."""
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [importlib.import_module(f"{__name__}.{name}") for name in names]
