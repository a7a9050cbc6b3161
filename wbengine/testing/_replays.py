"""Replays of recorded flows in tests."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from wbengine import exceptions, task
from wbengine.engines import _flow_records
from wbengine.engines._flow_records import Replayed

__all__ = ["Replayed", "replay"]


def replay(workflow: type[task.Workflow] | task.Workflow, path: str | os.PathLike[str]) -> Replayed:
    """Call the function of a workflow with the results of a recorded flow. No step is executed.

    If the values of the record are masked, the tasks of steps and their order are compared, and
    arguments that contain no masked value. The function can pass masked values to steps, tags and
    published values, and return them.

    :param workflow: the workflow, with the code to test.
    :param path: a file that `wbengine flow record` wrote.
    :raises NonDeterministicWorkflow: if the function does not repeat the recorded steps.
    :raises InvalidState: if the function uses a masked value in another way, such as in an `if`.
    :raises InvalidFormat: if the file is not a record of a flow.
    :raises OSError: if the file cannot be read.
    :raises TypeError: if `workflow` is not a workflow.
    """
    instance: Any = workflow() if isinstance(workflow, type) else workflow
    if not isinstance(instance, task.Workflow):
        raise TypeError(f"workflow must be a workflow, got {workflow!r:.200}")
    try:
        document = json.loads(Path(path).read_bytes())
    except ValueError as error:
        raise exceptions.InvalidFormat(f"{os.fspath(path)} must contain JSON: {error}") from error
    return _flow_records.replay(instance, document)
