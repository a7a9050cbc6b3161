"""Arrays and frames as arguments, results, signals and published values."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pandas.testing as tm
import pytest

from tests.integration.engine_kinds import engine_options
from tests.support import library_tasks as tasks
from wbengine import engines, operations, states
from wbengine.persistence import backends
from wbengine.views import flow_status
from wbengine.views.redaction import Redactor

KINDS = ["serial", "threads", "processes", "memory", "filesystem"]
STORES = ["memory://", "sqlite:///{}/flows.db", "dir://{}/flows"]


@pytest.mark.parametrize("kind", KINDS)
def test_tasks_exchange_arrays_and_frames(kind: str, tmp_path: Path) -> None:
    with engine_options(kind, tmp_path, tasks) as options:
        engine = engines.load(tasks.flow(), store={"start": tasks.FRAME}, **options)
        engine.run()
        results = engine.storage.fetch_all()
        tasks.check([results[name] for name in tasks.Make.default_provides])
        tm.assert_frame_equal(results["used"]["frames"][0], tasks.FRAME)

        engine = engines.load(tasks.flow(tasks.Fail()), store={"start": tasks.FRAME}, **options)
        with pytest.raises(ValueError, match="failed"):
            engine.run()
        # A result that is not as `Make` returned it would fail the revert.
        assert engine.storage.get_flow_state() == states.REVERTED


@pytest.mark.parametrize("store", STORES)
def test_stored_arrays_and_frames_are_read_and_shown(store: str, tmp_path: Path) -> None:
    with backends.backend(store.format(tmp_path)) as backend:
        engine = engines.load(tasks.publish, {"frame": tasks.FRAME}, backend=backend)
        uuid = engine.storage.flow_uuid
        operations.signal(backend, uuid, "array", tasks.ARRAY)
        engine.run()
        array, frame = engine.storage.get(tasks.publish().name)
        np.testing.assert_array_equal(array, tasks.ARRAY)
        tm.assert_frame_equal(frame, tasks.FRAME)
        tm.assert_frame_equal(operations.published(backend, uuid)["frame"], tasks.FRAME)
        with contextlib.closing(backend.get_connection()) as connection:
            view = flow_status.read(connection, uuid, redactor=Redactor(show_values=True))
        shown = str([atom.result for atom in view.atoms])
        assert "numpy.ndarray 2 float64" in shown or store == "memory://"
