"""Whether a worker lives and takes requests, as supervisors ask it."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import threading
import time
import urllib.parse
import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support import sample_tasks, tcp_proxy, workers
from tests.support.waiting import until
from tests.telemetry import scraping
from wbengine import engines
from wbengine.engines.worker_based import worker as workers_module
from wbengine.engines.worker_based.connections import receiver as receivers
from wbengine.patterns import linear_flow
from wbengine.telemetry import probes, serving

LOCAL = serving.Address("127.0.0.1", 0)


@pytest.fixture
def memory_url() -> str:
    return f"memory://{uuid.uuid4().hex}"


def told(worker: Any, path: str) -> tuple[int, Any]:
    found = probes.routes(worker)[path]()
    return found.status, json.loads(found.body)


# The command. ------------------------------------------------------------------------------------


def test_all_of_it_at_once(tmp_path: Path) -> None:
    """Both servers may be one; a file is touched; all of it ends with the worker."""
    heartbeat = tmp_path / "heartbeat"
    arguments = ["--url", f"filesystem://{tmp_path}/b", "--topic", "t"]
    arguments += ["--tasks", "tests.support.sample_tasks", "--metrics-addr", str(LOCAL)]
    arguments += ["--health-addr", str(LOCAL)]
    arguments += ["--heartbeat-file", str(heartbeat)]
    with workers.workers(tmp_path, *arguments) as (worker,):
        ready = scraping.place(worker, "/readyz")
        where = urllib.parse.urlsplit(ready).netloc
        assert where.startswith("127.0.0.1:")
        workers.until(lambda: scraping.get(ready) == (200, '{"status": "ok"}\n'))
        assert scraping.get(f"http://{where}/livez")[0] == 200
        status, page = scraping.get(f"http://{where}/metrics?name[]=x")
        assert status == 200 and "wbengine_worker_slots{" in page
        assert scraping.get(f"http://{where}/")[0] == 404
        workers.until(heartbeat.exists)
        first = heartbeat.stat().st_mtime
        workers.until(lambda: heartbeat.stat().st_mtime > first)
        assert worker.stop() == 0
        with pytest.raises(OSError):
            socket.create_connection(("127.0.0.1", int(where.rpartition(":")[2])), 1)


@pytest.mark.parametrize(
    ("option", "value", "words"),
    [
        ("--metrics-addr", "9100", "'--metrics-addr': '9100' is not of the form HOST:PORT"),
        ("--health-addr", "host:http", "'host:http' is not of the form HOST:PORT"),
        ("--metrics-addr", "127.0.0.1:70000", "'127.0.0.1:70000' is not of the form HOST:PORT"),
        ("--health-addr", "{taken}", "cannot listen on {taken}: Address already in use"),
        ("--heartbeat-file", "/nowhere/file", "No such file or directory: '/nowhere/file'"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_line(
    tmp_path: Path, option: str, value: str, words: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        taken = f"127.0.0.1:{server.getsockname()[1]}"
        arguments = ["--url", f"filesystem://{tmp_path}/b", "--topic", "t", "--quiet"]
        arguments += ["--tasks", "tests.support.sample_tasks", option, value.format(taken=taken)]
        with workers.workers(tmp_path, *arguments) as (worker,):
            assert worker.wait() == 2
            assert words.format(taken=taken) in worker.text
            assert len(worker.text.splitlines()) == 1


# Readiness and life. -----------------------------------------------------------------------------


def test_it_is_ready_while_it_takes_requests(memory_url: str) -> None:
    with workers.worker_in_thread(memory_url, sample_tasks) as worker:
        assert told(worker, "/readyz") == (200, {"status": "ok"})
        worker.suspend()
        assert told(worker, "/readyz") == (
            503,
            {"status": "unavailable", "why": "it is suspended"},
        )
        worker.resume()
        assert told(worker, "/readyz")[0] == 200
        worker.stop()
        assert told(worker, "/readyz")[1]["why"] == "it ends"
        assert told(worker, "/livez") == (200, {"status": "ok"})


def test_what_has_not_begun_is_not_ready(memory_url: str) -> None:
    made = workers.worker_in_thread(memory_url, sample_tasks)
    with made as worker:
        pass
    assert worker.trouble == "it ends" and worker.heard < 0


def test_one_that_is_stuck_does_not_live(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with workers.worker_in_thread(memory_url, sample_tasks) as worker:
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with worker._runner.lock:
                held.set()
                over.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert held.wait(60)
            monkeypatch.setattr(probes, "STUCK", 0.1)
            assert told(worker, "/livez")[0] == 503
        finally:
            over.set()
            thread.join()
        monkeypatch.setattr(probes, "STUCK", 60.0)
        assert told(worker, "/livez")[0] == 200


def test_it_is_seen_when_a_broker_falls_silent(
    redis_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody closes the connection: bytes just do not come any more.  It still lives, but does not
    hear anything, and touches no file; and when the broker is back, it does."""
    monkeypatch.setattr(receivers, "QUIET", 0.3)
    monkeypatch.setattr(receivers, "DEAF", 1.0)
    monkeypatch.setattr(workers_module, "SILENCE", 1.0)
    monkeypatch.setattr(probes, "PERIOD", 0.1)
    heartbeat = tmp_path / "heartbeat"
    pulse = probes.Pulse(heartbeat)
    touched = heartbeat.stat

    def beats() -> bool:
        before = touched().st_mtime_ns
        end = time.monotonic() + 1.0
        while touched().st_mtime_ns == before and time.monotonic() < end:
            time.sleep(0.02)
        return touched().st_mtime_ns != before

    with redis_server.place() as url, tcp_proxy.threaded(redis_server.port) as proxy:
        place = url.replace(f":{redis_server.port}", f":{proxy.port}")
        with workers.worker_in_thread(place, sample_tasks) as worker:
            assert not heartbeat.exists()
            worker.tell_turns(pulse)
            workers.until(heartbeat.exists)
            workers.until(beats)
            workers.until(lambda: worker.trouble is None)
            proxy.stall()
            workers.until(lambda: not beats())
            workers.until(lambda: worker.trouble is not None)
            assert re.search("its broker has been silent|it is not connected", str(worker.trouble))
            assert told(worker, "/livez")[0] == 200
            proxy.resume()
            workers.until(beats)
            workers.until(lambda: worker.trouble is None)
            engines.run(
                linear_flow.Flow("f").add(sample_tasks.Nothing("n")),
                engine="worker-based", url=place,
            )  # fmt: skip


def test_a_file_that_cannot_be_touched_ends_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(probes, "PERIOD", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    pulse = probes.Pulse(folder / "file")
    folder.rmdir()
    for _ in range(3):
        pulse(time.monotonic())
    assert caplog.text.count("cannot be touched") == 1
    folder.mkdir()
    pulse(time.monotonic())
    assert (folder / "file").exists()


def test_only_what_was_heard_anew_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "PERIOD", 0.0)
    file = tmp_path / "file"
    pulse = probes.Pulse(file)
    pulse(float("-inf"))
    assert not file.exists()
    now = time.monotonic()
    for heard, touched in ((now - 1, True), (now - 1, False), (now, True), (now - 2, False)):
        pulse(heard)
        assert file.exists() == touched
        file.unlink(missing_ok=True)


# The server. -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("127.0.0.1:80", ("127.0.0.1", 80)),
        ("[::1]:0", ("::1", 0)),
        ("host.example:65535", ("host.example", 65535)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    found = serving.address(text)
    assert (found, str(found)) == (expected, text)


@pytest.mark.parametrize("text", ["", ":", ":80", "host", "host:", "host:-1", "::1:80", "host:٣"])
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ValueError, match="is not of the form HOST:PORT"):
        serving.address(text)


def test_the_server_answers_what_it_is_asked(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> serving.Answer:
        raise RuntimeError("broken")

    routes = {"/a": lambda: serving.Answer(b"text", "text/plain"), "/b": fails}
    server = serving.Server(LOCAL, routes)
    server.start()
    try:
        connection = http.client.HTTPConnection(*server.address, timeout=60)
        for method, path, status, body in (
            ("GET", "/a", 200, b"text"),
            ("HEAD", "/a", 200, b""),
            ("GET", "/a?x=/../..", 200, b"text"),
            ("GET", "/b", 500, b""),
            ("GET", "/../a", 404, b""),
            ("POST", "/a", 501, None),
        ):
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.read()
            assert answer.status == status, (method, path)
            assert body is None or found == body
            assert answer.getheader("Server") is None or method == "POST"
            connection.close()
        assert "/b cannot be answered" in caplog.text
    finally:
        server.stop()
    server.stop()


def test_a_client_that_says_nothing_holds_up_nobody() -> None:
    server = serving.Server(LOCAL, {"/a": lambda: serving.Answer(b"{}")})
    server.start()
    try:
        with socket.create_connection(server.address):
            assert scraping.get(f"http://{server.address}/a")[0] == 200
    finally:
        server.stop()


def test_client_that_says_its_request_byte_by_byte_is_cut_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.5)
    server = serving.Server(LOCAL, {"/a": lambda: serving.Answer(b"{}")})
    server.start()
    try:
        with socket.create_connection(server.address) as client:
            client.settimeout(0.05)

            def is_cut_off() -> bool:
                try:
                    client.send(b"x")
                    return client.recv(1) == b""
                except TimeoutError:
                    return False
                except OSError:
                    return True

            until(is_cut_off, within=3)
    finally:
        server.stop()


def test_answer_that_takes_long_is_not_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "PATIENCE", 0.2)
    later = threading.Event()

    def slowly() -> serving.Answer:
        later.wait(0.5)
        return serving.Answer(b"{}")

    server = serving.Server(LOCAL, {"/a": slowly})
    server.start()
    try:
        assert scraping.get(f"http://{server.address}/a")[0] == 200
    finally:
        server.stop()


def test_only_so_many_clients_are_served_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST", 2)
    server = serving.Server(LOCAL, {"/a": lambda: serving.Answer(b"{}")})
    server.start()
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(2):
                stack.enter_context(socket.create_connection(server.address))
            with socket.create_connection(server.address, timeout=60) as third:
                assert third.recv(1) == b""
        until(lambda: answers(server), within=5)
    finally:
        server.stop()


def answers(server: serving.Server) -> bool:
    try:
        return scraping.get(f"http://{server.address}/a")[0] == 200
    except OSError:
        return False
