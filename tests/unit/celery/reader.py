"""Reads results as Celery's client does: run with the results on stdin, as JSON.

`[[id, content type, body], …]` → `[{"type", "module", "args", "str", "bases", "meta"}, …]`.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from celery import Celery

# What both ends can import; it is imported as the client's own module is.
from tests.unit.celery import errands  # noqa: F401


def main() -> None:
    app = Celery(backend="cache+memory://", broker="memory://")
    found: list[Any] = []
    for id, body in json.load(sys.stdin):
        app.backend.set(app.backend.get_key_for_task(id), body.encode())
        result = app.AsyncResult(id)
        told: dict[str, Any] = {
            "state": result.state,
            "traceback": result.traceback,
            "done": str(result.date_done),
            "children": [child.id for child in result.children or ()],
            "tuples": [child.as_tuple() for child in result.children or ()],
        }
        try:
            told["value"] = result.get(timeout=0.2, disable_sync_subtasks=False)
        except BaseException as error:
            cls = type(error)
            told |= {
                "type": cls.__qualname__,
                "module": cls.__module__,
                "args": list(map(repr, error.args)),
                "str": str(error),
                "bases": [base.__name__ for base in cls.__mro__],
            }
        found.append(told)
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
