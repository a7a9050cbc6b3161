"""The tasks of the census: all that a worker needs to import (`--tasks` names this module).

Everything they are told arrives as arguments and everything they say leaves as plain JSON values,
so that they run in this process, in another one, or on another host that sees the same folders.
What a task writes, its `revert` removes.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any, Final

from wbengine import task
from wbengine.examples.census import measuring
from wbengine.types import failure

#: The folder for partial results inside the output folder, and the result itself.
PARTIAL: Final = "partial"
REPORT: Final = "census.json"

#: The event by which a task tells that it runs now, and in which process (`pid`).
BEGUN: Final = "begun"


class _Announced(task.Task):
    """A task that tells when and where it begins, for those who watch."""

    TASK_EVENTS = (*task.Task.TASK_EVENTS, BEGUN)

    def pre_execute(self) -> None:
        self.notifier.notify(BEGUN, {"pid": os.getpid()})


class MakeFolder(_Announced):
    """Makes the folder for partial results, with the folders above it that are missing.

    The result lists what it made, outermost first: that, and nothing else, is undone.
    """

    def execute(self, out: str) -> dict[str, Any]:
        made: list[str] = []
        partial = Path(out, PARTIAL)
        try:
            for folder in [*reversed(partial.parents), partial]:
                if not folder.is_dir():
                    folder.mkdir()
                    made.append(str(folder))
        except OSError:
            _remove_folders(made)
            raise
        return {"partial": str(partial), "made": made}

    def revert(self, result: Any, **_: Any) -> None:
        if not isinstance(result, failure.Failure):
            _remove_folders(result["made"])


class MeasureGroup(_Announced):
    """The map: measures a group of files and leaves the result in a partial file, too."""

    idempotent = True  # doing it again gives the same

    def execute(
        self, folder: dict[str, Any], root: str, group: str, files: list[str], fail: bool = False
    ) -> measuring.Counts:
        counts = measuring.add(_measure(root, path) for path in files)
        _write_json(_partial_file(folder, group), counts)
        if fail:
            raise RuntimeError(f"{group} fails because --fail asked for it")
        return counts

    def revert(self, folder: dict[str, Any], group: str, **_: Any) -> None:
        _partial_file(folder, group).unlink(missing_ok=True)


class AddUp(_Announced):
    """The reduce: adds up the counts of the groups of a module, or of all modules."""

    idempotent = True

    def execute(self, **parts: measuring.Counts) -> measuring.Counts:
        return measuring.add(parts.values())


class WriteReport(_Announced):
    """Writes the report and removes the partial files.

    The report appears with its last step, whole; one of an earlier run stays until then.
    """

    def execute(
        self,
        folder: dict[str, Any],
        title: str,
        groups: list[str],
        total: measuring.Counts,
        modules: dict[str, str],
        **counts: measuring.Counts,
    ) -> str:
        census = {
            "source": title,
            "total": total,
            "modules": [{"name": name, **counts[modules[name]]} for name in sorted(modules)],
        }
        partial = Path(folder["partial"])
        draft = partial / REPORT
        _write_json(draft, census)
        for group in groups:
            _partial_file(folder, group).unlink(missing_ok=True)
        draft.replace(partial.parent / REPORT)
        _remove_folders([str(partial)])
        return REPORT

    def revert(self, result: Any, folder: dict[str, Any], **_: Any) -> None:
        partial = Path(folder["partial"])
        (partial / REPORT).unlink(missing_ok=True)
        if not isinstance(result, failure.Failure):
            (partial.parent / REPORT).unlink(missing_ok=True)


def _measure(root: str, path: str) -> measuring.Counts:
    try:
        source = Path(root, path).read_bytes()
    except OSError as error:
        return measuring.unreadable(path, f"{type(error).__name__}: {error.strerror}")
    return measuring.measure(path, source)


def _partial_file(folder: dict[str, Any], group: str) -> Path:
    return Path(folder["partial"], f"{group}.json")


def _write_json(path: Path, value: Any) -> None:
    text = json.dumps(value, sort_keys=True, indent=2, ensure_ascii=False)
    path.write_text(text + "\n", encoding="utf-8")


def _remove_folders(folders: list[str]) -> None:
    for folder in reversed(folders):
        try:
            os.rmdir(folder)
        except OSError:
            return  # somebody else keeps something there: theirs to remove
