"""Extended results: name, arguments and worker of the task."""

from __future__ import annotations

from typing import Any

import pytest

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.support.brokers import Place

NODE = "ours@here"


@pytest.mark.parametrize("served_by", ["wbengine", "celery"])
def test_extended_result_has_name_arguments_and_worker_of_task(
    served_by: str, broker_servers: Any, store: Place, celery: peers.Celery, client: peers.Client,
    tmp_path: Any,
) -> None:  # fmt: skip
    """`AsyncResult` has the same attributes with both kinds of worker."""
    with broker_servers["redis"].place() as url:
        if served_by == "wbengine":
            words = "--celery-name", NODE
            worker: Any = peers.wbengine_worker(
                tmp_path, url, *words, backend=store, result_extended=True
            )
        else:
            worker = celery.worker(url, "threads", backend=store, name="ours", result_extended=True)
        bed = Bed(client, url, store, served_by)
        with worker:
            answer = bed.call("extended", f"{peers.NAME}.swap", (1, "b"), {"c": None})
            failed = bed.call("extended", f"{peers.NAME}.fail", ("no",), {})
    common = {"worker": NODE, "retries": 0, "queue": peers.QUEUE}
    assert answer == {
        "name": f"{peers.NAME}.swap",
        "args": [1, "b"],
        "kwargs": {"c": None},
        **common,
    }
    assert failed == {"name": f"{peers.NAME}.fail", "args": ["no"], "kwargs": {}, **common}
