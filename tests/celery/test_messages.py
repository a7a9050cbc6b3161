"""Messages that are not as they usually are."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.celery import peers
from tests.celery.conftest import Bed
from tests.support.brokers import Place
from tests.support.workers import until


def test_a_raw_body_is_the_argument(
    url: Place, store: Place, client: peers.Client, tmp_path: Path
) -> None:
    bed = Bed(client, url, store, "wbengine")
    raw = {"content_type": "application/data", "content_encoding": "binary"}
    with peers.wbengine_worker(tmp_path, url, backend=store):
        for number, body in enumerate((b"\xff\x00\xfe", b"", b"[[1], {}, {}]")):
            headers = {"task": f"{peers.NAME}.size", "id": f"raw-{number}", "lang": "py"}
            bed.call("publish", (body, {"headers": headers, **raw}))
            (told,) = bed.call("wait", f"raw-{number}")
            assert told["value"] == ["bytes", len(body)]


def test_other_languages(url: Place, store: Place, client: peers.Client, tmp_path: Path) -> None:
    """They go on to the queue that was named for them, as they are; or are rejected, in a line."""
    bed = Bed(client, url, store, "wbengine")
    sent = [
        (
            json.dumps([[n], {}, {}]),
            {
                "headers": {"task": "a.b", "id": f"id-{lang}", "lang": lang, "meth": "m"},
                "correlation_id": f"id-{lang}",
                "content_type": "application/json",
                "content_encoding": "utf-8",
            },
        )
        for n, lang in enumerate(("java", "ruby"))
    ]
    with peers.wbengine_worker(
        tmp_path, url, "--celery-lang", "java=for-java", backend=store
    ) as worker:
        bed.call("publish", *sent)
        until(lambda: "ruby" in worker.text)
        assert bed.run("add", 1, 2)["value"] == 3
        ((headers, correlation_id, body),) = bed.call("take", "for-java")
        assert correlation_id == "id-java" and json.loads(body) == [[0], {}, {}]
        assert sent[0][1]["headers"].items() <= headers.items()
        (line,) = (line for line in worker.text.splitlines() if "ruby" in line)
        assert "id-ruby" in line
        assert worker.stop() == 0
    assert bed.call("depth", peers.QUEUE) == 0


def test_priorities(
    kind: str, url: Place, store: Place, client: peers.Client, tmp_path: Path
) -> None:
    """Of what waits already, RabbitMQ gives out the highest number first, and Redis the lowest."""
    path = tmp_path / "path"
    conf = {"task_queue_max_priority": 9} if kind == "rabbitmq" else {}
    bed = Bed(client, url, store, "wbengine", conf=conf)
    ids = [
        bed.call("start", f"{peers.NAME}.note", (str(path), str(n)), priority=n)
        for n in (6, 0, 9, 3)
    ]
    with peers.wbengine_worker(tmp_path, url, "--threads", "1", backend=store):
        bed.call("wait", *ids)
    expected = ["0", "3", "6", "9"]
    found = path.read_text(encoding="utf-8").split()
    assert found == (expected if kind == "redis" else expected[::-1])


@pytest.mark.parametrize(
    ("kind", "count"),
    [("redis", 1_000), pytest.param("redis", 10_000, marks=pytest.mark.slow), ("rabbitmq", 1_000)],
)
def test_mutated_messages(
    kind: str, count: int, url: Place, store: Place, client: peers.Client, tmp_path: Path
) -> None:
    """They never kill a worker, nor stop it, and none of them comes again."""
    bed = Bed(client, url, store, "wbengine")
    with peers.wbengine_worker(tmp_path, url, "--quiet", backend=store) as worker:
        assert bed.run("add", 0, 1)["value"] == 1
        bed.call("mutated", count, 7)
        assert bed.run("add", 1, 2)["value"] == 3
        assert bed.call("chain", 5) == [5, 4]
        until(lambda: not bed.call("depth", peers.QUEUE))
        assert worker.process.poll() is None
        assert bed.run("add", 3, 4)["value"] == 7
        assert not re.search(r"(?m)^Traceback", worker.text)
        assert worker.stop() == 0
    assert bed.call("depth", peers.QUEUE) == 0


@pytest.mark.parametrize("kind", ["redis"])
def test_what_is_no_message(
    kind: str, url: Place, store: Place, client: peers.Client, tmp_path: Path
) -> None:
    """Whatever lies in the list that is the queue."""
    bed = Bed(client, url, store, "wbengine")
    with peers.wbengine_worker(tmp_path, url, backend=store) as worker:
        assert bed.run("add", 1, 2)["value"] == 3
        bed.call("litter", peers.QUEUE)
        assert bed.run("add", 3, 4)["value"] == 7
        assert worker.process.poll() is None
        assert worker.stop() == 0
