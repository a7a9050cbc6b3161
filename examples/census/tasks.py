"""The tasks of the census: all that a worker needs to import (`--tasks` names this module).

The tasks receive only arguments and return plain JSON values, so they can run in this process, in
another one, or on another host that has access to the same folders.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from examples.census import measuring
from examples.census.sources import Group
from wbengine import task
from wbengine.patterns import graph_flow
from wbengine.types import failure

REPORT = "census.json"


class MakeFolder(task.Task):
    """Creates the folder for the report, and missing folders above it.

    The result lists the created folders, outermost first; the revert deletes only these.
    """

    default_provides = "folders"

    def execute(self, out: str) -> list[str]:
        missing = [folder for folder in [*reversed(Path(out).parents), Path(out)]
                   if not folder.is_dir()]  # fmt: skip
        created: list[str] = []
        try:
            for folder in missing:
                folder.mkdir()
                created.append(str(folder))
        except OSError:
            _remove(created)
            raise
        return created

    def revert(self, result: Any, **_: Any) -> None:
        if not isinstance(result, failure.Failure):
            _remove(result)


def _remove(folders: list[str]) -> None:
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except OSError:
            return  # not empty: another program uses the folder


class Measure(task.Task):
    """The map: measures a group of files."""

    idempotent = True  # another run gives the same result

    def execute(
        self, folders: list[str], root: str, group: str, files: list[str], fail: bool = False
    ) -> measuring.Counts:
        if fail:
            raise RuntimeError(f"{group} fails because --fail asked for it")
        return measuring.add(measuring.measure(root, path) for path in files)


class AddUp(task.Task):
    """The reduce: adds up the counts of the groups of a module, or of all modules."""

    idempotent = True

    def execute(self, **parts: measuring.Counts) -> measuring.Counts:
        return measuring.add(parts.values())


class WriteReport(task.Task):
    """Writes the report atomically; the report of an earlier run remains until then."""

    def execute(
        self,
        out: str,
        title: str,
        total: measuring.Counts,
        modules: dict[str, str],
        **counts: measuring.Counts,
    ) -> None:
        census = {
            "source": title,
            "total": total,
            "modules": [{"name": name, **counts[modules[name]]} for name in sorted(modules)],
        }
        text = json.dumps(census, sort_keys=True, indent=2, ensure_ascii=False)
        draft = Path(out, f".{REPORT}")
        draft.write_text(text + "\n", encoding="utf-8")
        draft.replace(Path(out, REPORT))

    def revert(self, result: Any, out: str, **_: Any) -> None:
        Path(out, f".{REPORT}").unlink(missing_ok=True)
        if not isinstance(result, failure.Failure):
            Path(out, REPORT).unlink(missing_ok=True)


def census(groups: Sequence[Group], fail: str | None = None) -> graph_flow.Flow:
    """Return the flow that measures `groups`: folder -> groups -> modules -> total -> report.

    The first group of the module `fail` raises an exception. The largest groups start first.
    """
    flow = graph_flow.Flow("census").add(MakeFolder("make folder"))
    parts: dict[str, list[str]] = {}
    for group in groups:
        measured = f"counts of group {group.name}"
        inject: dict[str, Any] = {"group": group.name, "files": list(group.files)}
        if group.module == fail and fail not in parts:
            inject["fail"] = True
        node = Measure(f"measure {group.name}", provides=measured, inject=inject)
        node.priority = group.size
        flow.add(node)
        parts.setdefault(group.module, []).append(measured)
    modules = {module: f"counts of {module}" for module in parts}
    for module, measured_parts in parts.items():
        flow.add(AddUp(f"add up {module}", provides=modules[module], requires=measured_parts))
    counts = list(modules.values())
    return flow.add(
        AddUp("add up everything", provides="total", requires=counts),
        WriteReport("write report", requires=counts, inject={"modules": modules}),
    )
