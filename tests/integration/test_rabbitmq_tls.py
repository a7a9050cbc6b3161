"""TLS connections to RabbitMQ (`amqps://`)."""

from __future__ import annotations

import contextlib
import socket
import ssl
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import tenacity

from tests.support import brokers
from wbengine import exceptions as exc
from wbengine.engines.worker_based.proxy import Proxy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Self-signed certificates: `good.*` of localhost, `other.*` of another host."""
    folder = tmp_path_factory.mktemp("tls")
    for name, host in (("good", "localhost"), ("other", "elsewhere.example")):
        command = ["openssl", "req", "-x509", "-nodes", "-newkey", "ec", "-days", "2"]
        command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", f"/CN={host}"]
        command += ["-addext", f"subjectAltName=DNS:{host}"]
        command += ["-keyout", f"{folder}/{name}.key", "-out", f"{folder}/{name}.pem"]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while data := source.recv(65536):
            sink.sendall(data)
    for end in (source, sink):
        with contextlib.suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


@contextlib.contextmanager
def wrapped(port: int, folder: Path, name: str) -> Iterator[int]:
    """Yield a TLS port in front of a port without TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near, _ = server.accept()
                    threading.Thread(target=pass_on, args=(near,), daemon=True).start()

        def pass_on(near: socket.socket) -> None:
            with (
                contextlib.suppress(OSError),
                socket.create_connection(("127.0.0.1", port)) as far,
                context.wrap_socket(near, server_side=True) as safe,
            ):
                threading.Thread(target=copy, args=(far, safe), daemon=True).start()
                copy(safe, far)

        threading.Thread(target=serve, daemon=True).start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)  # ends `accept`


@pytest.mark.parametrize(
    ("certificate", "query", "says"),
    [
        ("good", "?ssl_ca_certs={folder}/good.pem", None),
        ("good", "", "its certificate is not accepted (self"),
        ("other", "?ssl_ca_certs={folder}/other.pem", "Hostname mismatch"),
        ("other", "?ssl_ca_certs={folder}/other.pem&ssl_server_hostname=elsewhere.example", None),
        ("other", "?ssl_cert_reqs=none", None),
    ],
)
def test_certificate_of_broker_is_verified_as_configured(
    rabbitmq_server: brokers.Rabbitmq,
    rabbitmq_url: str,
    folder: Path,
    certificate: str,
    query: str,
    says: str | None,
) -> None:
    with wrapped(rabbitmq_server.port, folder, certificate) as port:
        url = rabbitmq_url.replace("amqp://", "amqps://")
        url = url.replace(f"127.0.0.1:{rabbitmq_server.port}", f"localhost:{port}")
        proxy = Proxy("a", "x", {}, url=url + query.format(folder=folder))
        if says is not None:
            with pytest.raises(exc.TransportFailure) as caught:
                proxy.start()
            assert says in str(caught.value)
            assert rabbitmq_server.password not in str(caught.value)
            return
        thread = threading.Thread(target=proxy.start, daemon=True)
        thread.start()
        assert proxy.wait(60)
        proxy.stop()
        thread.join(60)
        assert not thread.is_alive()


def test_broker_without_tls_is_reported(rabbitmq_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    # Make one attempt without a time limit.
    monkeypatch.setattr(tenacity, "stop_after_delay", lambda _: tenacity.stop_after_attempt(1))
    proxy = Proxy("a", "x", {}, url=rabbitmq_url.replace("amqp://", "amqps://"))
    with pytest.raises(exc.TransportFailure, match="cannot be reached: the TLS connection failed"):
        proxy.start()
