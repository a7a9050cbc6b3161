"""TLS connections to RabbitMQ (`amqps://`)."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import tenacity

from tests.support import brokers, receivers, tls
from wbengine import exceptions as exc
from wbengine.engines.worker_based.proxy import Proxy


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with certificates of localhost and of another host."""
    folder = tmp_path_factory.mktemp("tls")
    for host in ("localhost", "elsewhere"):
        receivers.make_certificate(folder, host)
    return folder


@pytest.mark.parametrize(
    ("certificate", "query", "says"),
    [
        ("localhost", "?ssl_ca_certs={folder}/localhost.pem", None),
        ("localhost", "", "its certificate is not accepted (self"),
        ("elsewhere", "?ssl_ca_certs={folder}/elsewhere.pem", "Hostname mismatch"),
        ("elsewhere", "?ssl_ca_certs={folder}/elsewhere.pem&ssl_server_hostname=elsewhere", None),
        ("elsewhere", "?ssl_cert_reqs=none", None),
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
    with tls.wrapped(rabbitmq_server.port, folder / f"{certificate}.pem") as port:
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
