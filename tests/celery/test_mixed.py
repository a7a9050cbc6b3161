"""Workers of both kinds on one queue: whoever counts the last part of a chord sends its body."""

from __future__ import annotations

from pathlib import Path

from tests.brokers import Place
from tests.celery import peers
from tests.celery.conftest import Bed, Beds
from tests.workers import until


def test_chords_whose_parts_run_on_both(
    beds: Beds, celery: peers.Celery, url: Place, redis_url: Place, tmp_path: Path
) -> None:
    ours = peers.wbengine_worker(tmp_path, url, "--threads", "2", backend=redis_url)
    theirs = celery.worker(url, "threads", concurrency=2, backend=redis_url)
    bed = Bed(beds.client, str(url), str(redis_url), "both")
    with ours as worker, theirs:
        until(lambda: len(bed.call("inspect", "ping", limit=2) or ()) == 2)
        for _ in range(5):
            told = bed.call("chords")
            assert (told["chord"], told["in order"]) == (870, list("abcdefghijklmno"))
            assert (told["in the midst"], told["two"]) == (32, 6)
            assert (told["chains as parts"], told["a chain as body"]) == ([20, 4, 9], 21)
        shared = worker.text.count("tests.celery.tasks.add")
        assert 0 < shared < 5 * 35, "each of them had a part in it"
