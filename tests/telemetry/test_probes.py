"""Liveness and readiness of workers."""

from __future__ import annotations

import contextlib
import http.client
import json
import re
import socket
import subprocess
import threading
import time
import urllib.parse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support import python, sample_tasks, tcp_proxy, workers
from tests.support.waiting import until
from tests.telemetry import scraping
from wbengine import engines
from wbengine.engines.worker_based import worker as workers_module
from wbengine.engines.worker_based._connections import receiver as receivers
from wbengine.patterns import linear_flow
from wbengine.telemetry import _probes, _serving

LOCAL = _serving.Address("127.0.0.1", 0)


@contextlib.contextmanager
def served(routes: dict[str, Any] | None = None) -> Iterator[_serving.Server]:
    """Run a server, by default with the path `/a`."""
    server = _serving.Server(LOCAL, routes or {"/a": lambda: _serving.Answer(b"{}")})
    server.start()
    try:
        yield server
    finally:
        server.stop()


def probe(worker: Any, path: str) -> tuple[int, Any]:
    answer = _probes.routes(worker)[path]()
    return answer.status, json.loads(answer.body)


# The command. ------------------------------------------------------------------------------------


def test_worker_serves_probes_and_metrics_and_touches_heartbeat_file(tmp_path: Path) -> None:
    """One server serves all paths if the addresses are equal; it ends with the worker."""
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
        ("--metrics-addr", "9100", "--metrics-addr must have the form HOST:PORT, got '9100'"),
        ("--health-addr", "host:http", "must have the form HOST:PORT, got 'host:http'"),
        ("--metrics-addr", "127.0.0.1:70000", "must have the form HOST:PORT, got '127.0.0.1:"),
        ("--health-addr", "{taken}", "cannot listen on {taken}: Address already in use"),
        ("--heartbeat-file", "/nowhere/file", "No such file or directory: '/nowhere/file'"),
    ],
)
def test_unusable_probe_option_is_reported_in_one_line(
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


# Readiness and liveness. --------------------------------------------------------------------------


def test_worker_is_ready_only_while_it_takes_requests(place: str) -> None:
    with workers.worker_in_thread(place, sample_tasks) as worker:
        assert probe(worker, "/readyz") == (200, {"status": "ok"})
        worker.suspend()
        assert probe(worker, "/readyz") == (
            503,
            {"status": "unavailable", "why": "the worker is suspended"},
        )
        worker.resume()
        assert probe(worker, "/readyz")[0] == 200
        worker.stop()
        assert probe(worker, "/readyz")[1]["why"] == "the worker is stopping"
        assert probe(worker, "/livez") == (200, {"status": "ok"})


def test_stopped_worker_is_not_ready(place: str) -> None:
    with workers.worker_in_thread(place, sample_tasks) as worker:
        pass
    assert worker.trouble == "the worker is stopping" and worker.heard < 0


def test_blocked_worker_fails_its_liveness_probe(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with workers.worker_in_thread(place, sample_tasks) as worker:
        held, over = threading.Event(), threading.Event()

        def hold() -> None:
            with worker._runner.lock:
                held.set()
                over.wait(60)

        thread = threading.Thread(target=hold)
        thread.start()
        try:
            assert held.wait(60)
            monkeypatch.setattr(_probes, "RESPONSE_SECONDS", 0.1)
            assert probe(worker, "/livez")[0] == 503
        finally:
            over.set()
            thread.join()
        monkeypatch.setattr(_probes, "RESPONSE_SECONDS", 60.0)
        assert probe(worker, "/livez")[0] == 200


def test_silent_broker_makes_worker_unready_until_it_answers(
    redis_server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection stays open but transfers no bytes. The worker is alive but not ready, and does
    not touch its heartbeat file until the broker responds again.
    """
    monkeypatch.setattr(receivers, "ECHO_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(receivers, "DEAF_AFTER_SECONDS", 1.0)
    monkeypatch.setattr(workers_module, "SILENCE_SECONDS", 1.0)
    monkeypatch.setattr(_probes, "TOUCH_SECONDS", 0.1)
    heartbeat = tmp_path / "heartbeat"
    pulse = _probes.Pulse(heartbeat)
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
            worker.observe_loop(pulse)
            workers.until(heartbeat.exists)
            workers.until(beats)
            workers.until(lambda: worker.trouble is None)
            proxy.stall()
            workers.until(lambda: not beats())
            workers.until(lambda: worker.trouble is not None)
            assert re.search(
                "the broker has sent nothing|the worker is not connected", str(worker.trouble)
            )
            assert probe(worker, "/livez")[0] == 200
            proxy.resume()
            workers.until(beats)
            workers.until(lambda: worker.trouble is None)
            engines.run(
                linear_flow.Flow("f").add(sample_tasks.Nothing("n")),
                engine="worker-based", url=place,
            )  # fmt: skip


def test_untouchable_heartbeat_file_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probes, "TOUCH_SECONDS", 0.0)
    folder = tmp_path / "folder"
    folder.mkdir()
    pulse = _probes.Pulse(folder / "file")
    folder.rmdir()
    for _ in range(3):
        pulse(time.monotonic())
    assert caplog.text.count("cannot touch") == 1
    folder.mkdir()
    pulse(time.monotonic())
    assert (folder / "file").exists()


def test_heartbeat_file_is_touched_only_after_new_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_probes, "TOUCH_SECONDS", 0.0)
    file = tmp_path / "file"
    pulse = _probes.Pulse(file)
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
def test_valid_address_is_parsed(text: str, expected: tuple[str, int]) -> None:
    address = _serving.address(text)
    assert (address, str(address)) == (expected, text)


@pytest.mark.parametrize("text", ["", ":", ":80", "host", "host:", "host:-1", "::1:80", "host:٣"])
def test_invalid_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="must have the form HOST:PORT"):
        _serving.address(text)


def test_server_answers_requests_by_method_and_path(caplog: pytest.LogCaptureFixture) -> None:
    def fails() -> _serving.Answer:
        raise RuntimeError("broken")

    routes = {"/a": lambda: _serving.Answer(b"text", "text/plain"), "/b": fails}
    with served(routes) as server:
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
            content = answer.read()
            assert answer.status == status, (method, path)
            assert body is None or content == body
            assert answer.getheader("Server") is None or method == "POST"
            connection.close()
        assert "cannot respond to /b" in caplog.text
    server.stop()


def test_silent_client_does_not_block_other_clients() -> None:
    with served() as server, socket.create_connection(server.address):
        assert scraping.get(f"http://{server.address}/a")[0] == 200


def test_slow_client_is_disconnected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_serving, "CLIENT_SECONDS", 0.5)
    with served() as server, socket.create_connection(server.address) as client:
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


def test_slow_answer_is_not_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_serving, "CLIENT_SECONDS", 0.2)
    later = threading.Event()

    def slowly() -> _serving.Answer:
        later.wait(0.5)
        return _serving.Answer(b"{}")

    with served({"/a": slowly}) as server:
        assert scraping.get(f"http://{server.address}/a")[0] == 200


def test_oldest_silent_client_is_disconnected_for_a_new_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_serving, "MAX_WAITING", 2)
    monkeypatch.setattr(_serving, "CLIENT_SECONDS", 60.0)
    with served() as server, contextlib.ExitStack() as stack:
        for _ in range(2):
            silent = [
                stack.enter_context(socket.create_connection(server.address, timeout=60))
                for _ in range(2)
            ]
            assert scraping.get(f"http://{server.address}/a") == (200, "{}")
            assert silent[0].recv(1) == b""
            silent[1].sendall(b"GET /a HTTP/1.0\r\n\r\n")
            assert b" 200 " in silent[1].recv(1000)


def test_clients_connect_while_the_server_is_busy() -> None:
    """With a short listen backlog, clients would retry only after one or three seconds."""
    server = _serving.Server(LOCAL, {"/a": lambda: _serving.Answer(b"{}")})
    try:
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                stack.enter_context(socket.create_connection(server.address, timeout=60))
    finally:
        server.stop()


def test_requests_above_the_limit_are_refused_with_503(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(_serving, "MAX_ANSWERED", 2)
    begun, go_on = threading.Semaphore(0), threading.Event()

    def slowly() -> _serving.Answer:
        begun.release()
        assert go_on.wait(60)
        return _serving.Answer(b"{}")

    with served({"/a": slowly}) as server:
        with contextlib.ExitStack() as stack:
            stack.callback(go_on.set)
            clients = [
                stack.enter_context(socket.create_connection(server.address, timeout=60))
                for _ in range(3)
            ]
            for client in clients[:2]:
                client.sendall(b"GET /a HTTP/1.0\r\n\r\n")
                assert begun.acquire(timeout=60)
            clients[2].sendall(b"GET /a HTTP/1.0\r\n\r\n")
            refusal = clients[2].recv(1000)
            assert b" 503 " in refusal and b"Retry-After: 1" in refusal
            go_on.set()
            assert all(b" 200 " in client.recv(1000) for client in clients[:2])
        until(lambda: answers(server), within=5)


#: A server in a process that opens all descriptors after one line of input, and closes them after
#: another.
_NO_DESCRIPTORS = """
import os, resource, socketserver, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
from wbengine.telemetry import _serving as serving
accept, accepts = socketserver.TCPServer.get_request, []
def counted(server):
    accepts.append(1)
    return accept(server)
socketserver.TCPServer.get_request = counted
server = serving.Server(serving.Address("127.0.0.1", 0), {"/a": lambda: serving.Answer(b"{}")})
server.start()
print(server.address.port, flush=True)
sys.stdin.readline()
used = []
while True:
    try:
        used.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        break
os.close(used.pop())
print("used", flush=True)
sys.stdin.readline()
for each in used:
    os.close(each)
print(len(accepts), flush=True)
sys.stdin.readline()
"""


def test_lack_of_descriptors_neither_floods_log_nor_uses_cpu(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with (
        log.open("w") as file,
        python.start(
            ["-c", _NO_DESCRIPTORS],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=file, text=True,
        ) as process,
        contextlib.ExitStack() as stack,
    ):  # fmt: skip
        assert process.stdin is not None and process.stdout is not None

        def next_line() -> str:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write("\n")
            process.stdin.flush()
            return process.stdout.readline()

        where = "127.0.0.1", int(process.stdout.readline())
        assert next_line() == "used\n"
        for _ in range(20):
            stack.enter_context(socket.create_connection(where, timeout=60))
        until(lambda: "Too many open files" in log.read_text())
        time.sleep(2.0)  # a server without a pause would call `accept` thousands of times
        assert int(next_line()) < 100
        assert len(log.read_text().splitlines()) == 1
        assert scraping.get(f"http://127.0.0.1:{where[1]}/a") == (200, "{}")
        process.stdin.close()


def answers(server: _serving.Server) -> bool:
    try:
        return scraping.get(f"http://{server.address}/a")[0] == 200
    except OSError:
        return False
