"""Serializers that a worker accepts."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import pytest

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.support.brokers import Place
from tests.support.workers import until

ALL = ["json", "yaml", "msgpack", "pickle"]
#: Values that each serializer can encode; results are JSON.
VALUES = {
    "json": {"text": "é", "when": dt.datetime(2026, 1, 2, tzinfo=dt.UTC)},
    "yaml": {"list": [1, 2.5, None, True], "text": "é"},
    "msgpack": {"text": "é", "list": [1, 2.5, None, True], "bytes": b"\xff\x00"},
    "pickle": {"text": "é", "tuple": (1, {2}, None), 3: b"\xff", "range": range(3)},
}


@pytest.mark.parametrize(("kind", "served_by"), [("redis", "wbengine"), ("redis", "celery")])
def test_accepted_serializers_are_read(
    kind: str,
    served_by: str,
    url: Place,
    store: Place,
    client: peers.Client,
    celery: peers.Celery,
    tmp_path: Path,
) -> None:
    """Follow-up messages use the serializer of the original message."""
    words = "--celery-accept", ",".join(ALL)
    running = (
        peers.wbengine_worker(tmp_path, url, *words, backend=store)
        if served_by == "wbengine"
        else celery.worker(url, "threads", backend=store, accept_content=ALL)
    )
    with running as worker:
        for name in ALL:
            conf = {"task_serializer": name, "accept_content": ALL}
            bed = Bed(client, url, store, served_by, conf=conf)
            assert bed.run("shown", VALUES[name])["value"] == repr(VALUES[name]), name
            if name != "yaml":  # Celery's clients cannot encode signatures in YAML
                assert bed.call("chain", 3) == [3, 2]
            answer = bed.using(task_protocol=1).run("shown", VALUES[name])
            assert answer["value"] == repr(VALUES[name]), name
        assert bed.call("failures")["odd"]["error"]["type"] == "Odd"
        if served_by == "wbengine":
            assert "can run code" in worker.text


@pytest.mark.parametrize("protocol", [1, 2])
def test_unaccepted_serializers_are_refused_before_decoding(
    protocol: int, url: Place, store: Place, client: peers.Client, tmp_path: Path
) -> None:
    """Each message is rejected once, and the worker continues."""
    bed = Bed(client, url, store, "wbengine", conf={"task_protocol": protocol})
    mark = tmp_path / "mark"
    with peers.wbengine_worker(tmp_path, url, backend=store) as worker:
        ids = [
            bed.using(task_serializer=name, accept_content=ALL).call(
                "start", f"{peers.NAME}.note", (str(mark),)
            )
            for name in ("pickle", "yaml", "msgpack")
        ]
        assert bed.run("add", 1, 2)["value"] == 3
        refused = "kombu.exceptions.ContentDisallowed: Refusing to deserialize"
        until(lambda: worker.text.count(refused) == len(ids))
        assert not mark.exists()
        assert worker.stop() == 0
    assert bed.call("depth", peers.QUEUE) == 0
