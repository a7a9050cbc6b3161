"""A dashboard with its own server."""

from __future__ import annotations

import builtins
import contextlib
import http.client
import signal
import socket
import subprocess
import sys
import urllib.parse
from collections.abc import Iterator
from typing import Any

import pytest

from tests.dashboard import story
from tests.dashboard.site import PATIENCE, asked, running
from tests.support import python
from wbengine import dashboard

_SERVE = """
from wbengine import dashboard
from wbengine.persistence.backends import _memory as memory
dashboard.serve(memory.MemoryBackend(), port=0)
"""


def test_no_auth_requires_a_loopback_address(kept: story.Kept) -> None:
    for host in ("0.0.0.0", "::", "192.0.2.1"):
        with pytest.raises(ValueError, match="only with a loopback address"):
            dashboard.Site(kept.backend, host=host, no_auth=True)


def test_port_in_use_raises_os_error(kept: story.Kept) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(OSError):
        dashboard.Site(kept.backend, port=taken.getsockname()[1])


@contextlib.contextmanager
def begun(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start Python; end the process when the context exits."""
    with python.start(arguments, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def test_url_with_token_is_printed_once_and_logs_in() -> None:
    with begun("-W", "error", "-c", _SERVE) as process:
        assert process.stderr is not None
        line = process.stderr.readline()
        assert line.startswith("Dashboard: http://127.0.0.1:")
        where = urllib.parse.urlsplit(line.split()[1])
        assert where.hostname is not None and len(where.query) > 40
        connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
        connection.request("GET", f"/?{where.query}")
        answer = connection.getresponse()
        assert answer.status == 303 and answer.headers["set-cookie"]
        assert "server" not in answer.headers
        answer.close()
        connection.close()
        process.terminate()
        _, remaining_output = process.communicate(timeout=PATIENCE)
        assert process.returncode in (0, -15)
        assert where.query.partition("=")[2] not in remaining_output


_SERVE_AND_TELL = """
import os, signal, sys
from wbengine import dashboard
from wbengine.persistence.backends import _memory as memory
def ready(url):
    print(sys.getswitchinterval() < before, file=sys.stderr)
    os.kill(os.getpid(), signal.SIGINT)
before = sys.getswitchinterval()
try:
    dashboard.serve(memory.MemoryBackend(), port=0, ready=ready)
except KeyboardInterrupt:
    pass
print(sys.getswitchinterval() == before, file=sys.stderr)
"""


def test_switch_interval_is_lower_while_serving() -> None:
    with begun("-c", _SERVE_AND_TELL) as process:
        _, output = process.communicate(timeout=PATIENCE)
        assert output.split() == ["True", "True"]


#: From the sixth poll on, polls of the list are slow. The grace periods are longer than usual,
#: because streams may end slowly on a slow machine.
_SLOW = """
import itertools, sys, time
from wbengine._cli import app
from wbengine.dashboard import _listings, _site, _stream
assert _stream.ENDING_SECONDS < _site._GRACE_SECONDS
_stream.ENDING_SECONDS, _site._GRACE_SECONDS = 40, 50
read, looks = _listings.FlowFilter.read, itertools.count()
def slow(*given):
    number = next(looks)
    if number >= 5:
        sys.stderr.write(f"looking {number}\\n")
        sys.stderr.flush()
        time.sleep(0.7)
    return read(*given)
_listings.FlowFilter.read = slow
sys.exit(app.main(["--persistence", "memory://", "dashboard", "--port", "0"]))
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_server_with_open_streams_ends_silently_on_signals(number: signal.Signals) -> None:
    with begun("-c", _SLOW) as process, contextlib.ExitStack() as listening:
        assert process.stderr is not None
        where = urllib.parse.urlsplit(process.stderr.readline().split()[1])
        assert where.hostname is not None
        headers = {"authorization": f"Bearer {where.query.partition('=')[2]}"}
        answers = []
        for _ in range(5):
            connection = http.client.HTTPConnection(where.hostname, where.port, timeout=PATIENCE)
            listening.callback(connection.close)
            connection.request("GET", "/stream/flows", headers=headers)
            answers.append(listening.enter_context(connection.getresponse()))
            assert answers[-1].readline().startswith(b"id:"), "it has begun"
        assert process.stderr.readline().startswith("looking ")
        process.send_signal(number)
        _, output = process.communicate(timeout=PATIENCE)
        assert [line for line in output.splitlines() if not line.startswith("looking")] == []
        assert process.returncode in (0, -number)
        for answer in answers:
            answer.read()  # complete, not interrupted


def test_loopback_server_refuses_other_host_names(kept: story.Kept) -> None:
    with running(kept.backend) as site:
        headers = {"host": "rebound.example", "authorization": f"Bearer {story.TOKEN}"}
        with asked(site, "GET", "/", headers) as answer:
            assert answer.status == 421


def test_missing_extra_is_named_in_the_error(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: Any, **more: Any) -> Any:
        if name.partition(".")[0] == "uvicorn":
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *rest, **more)

    monkeypatch.delitem(sys.modules, "wbengine.dashboard._site")
    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ImportError, match=r"uvicorn: .*pip install .*\[dashboard\]'"):
        _ = dashboard.serve
