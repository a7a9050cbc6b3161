"""Places for payloads: a folder, memory, and a bucket of a server that simulates S3."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from pathlib import Path

import boto3
import pytest
from moto.server import ThreadedMotoServer

from wbengine._payloads.payloads import MAX_INLINE_BYTES, Payloads
from wbengine.types._references import Reference

FLOW = "5f0c8f8e-0000-4000-8000-000000000001"
#: Size of bytes that are stored out of line.
LARGE = MAX_INLINE_BYTES + 1


def random_bytes(size: int = LARGE, seed: int = 1) -> bytes:
    return random.Random(seed).randbytes(size)


def reference_to(payloads: Payloads, value: object, flow: str = FLOW) -> Reference:
    stored = payloads.store_large(value, "result", flow)
    assert type(stored) is Reference
    return stored


@pytest.fixture(scope="session")
def s3_server() -> Iterator[str]:
    server = ThreadedMotoServer(port=0)
    server.start()
    _host, port = server.get_host_and_port()
    yield f"http://127.0.0.1:{port}"
    server.stop()


@pytest.fixture
def bucket(s3_server: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of a prefix in a new bucket; the environment names the server."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_server)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    name = f"bucket-{uuid.uuid4()}"
    boto3.client("s3").create_bucket(Bucket=name)
    return f"s3://{name}/flows/[1] ä"


@pytest.fixture(params=["folder", "memory", "s3"])
def location(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    match request.param:
        case "folder":
            return str(tmp_path / "payloads")
        case "memory":
            return f"memory://{uuid.uuid4()}"
    url: str = request.getfixturevalue("bucket")
    return url
