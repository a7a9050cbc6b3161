"""Clients of the HTTP API, with a real server and a conductor."""

from __future__ import annotations

import asyncio
import contextlib
import http.server
import inspect
import pickle
import threading
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import pytest

from tests.client.served import FLOWS, Server
from tests.dashboard import site as sites
from tests.dashboard import story
from tests.support.waiting import until
from wbengine import client as clients
from wbengine import exceptions

NOWHERE = "http://127.0.0.1:9"


class Blocking:
    """An asyncio client whose methods block, so that both clients have the same tests."""

    def __init__(self, target: Any, loop: asyncio.AbstractEventLoop) -> None:
        self._target = target
        self._loop = loop

    def __getattr__(self, name: str) -> Any:
        if name == "state":
            return self._run(self._target.state())
        found = getattr(self._target, name)
        if not callable(found):
            return found
        return lambda *args, **kwargs: self._run(found(*args, **kwargs))

    def _run(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            result = self._loop.run_until_complete(result)
        elif inspect.isasyncgen(result):
            result = iter(self._loop.run_until_complete(_list(result)))
        if isinstance(result, clients.AsyncRemoteFlow):
            return Blocking(result, self._loop)
        return result


async def _list(items: Any) -> list[Any]:
    return [each async for each in items]


Connect = Callable[..., Any]


@pytest.fixture(params=["blocking", "asyncio"])
def connect(request: pytest.FixtureRequest) -> Iterator[Connect]:
    """Return a function that creates a client."""
    with contextlib.ExitStack() as stack:
        if request.param == "blocking":

            def create(url: str, **options: Any) -> Any:
                options.setdefault("key", story.TOKEN)
                return stack.enter_context(clients.Client(url, **options))

            yield create
        else:
            loop = asyncio.new_event_loop()
            stack.callback(loop.close)

            def create(url: str, **options: Any) -> Any:
                options.setdefault("key", story.TOKEN)
                if "transport" in options:
                    options["transport"] = AsyncLossy(options["transport"].lost)
                client = clients.AsyncClient(url, **options)
                stack.callback(lambda: loop.run_until_complete(client.aclose()))
                return Blocking(client, loop)

            yield create


def test_flow_is_submitted_and_its_values_are_returned(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    with server.conducting():
        flow = client.submit(
            f"{FLOWS}:priced", inputs={"amount": 4}, tags={"shop": "paris"}, undo_until="30d"
        )
        values = flow.result(60)
    assert values == {
        "amount": 4, "price": 12, "password": "***", "day": "datetime.date(2026, 11, 28)",
    }  # fmt: skip
    assert flow.state == "SUCCESS" and flow.wait(0)
    assert [(row["uuid"], row["tags"]) for row in client.flows(find="shop=paris")] == [
        (flow.id, {"shop": "paris"})
    ]
    assert client.flow(flow.id.upper()).result(0) == values
    with contextlib.closing(server.backend.get_connection()) as connection:
        assert connection.get_flow_details(flow.id).meta["undo_until"] == 30 * 86_400.0


def test_inputs_are_converted_for_annotated_parameters(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    order = {"number": 7, "lines": [{"amount": "1.50"}, {"amount": 2}]}
    with server.conducting():
        flow = client.submit(f"{FLOWS}:typed", inputs={"order": order})
        values = flow.result(60)
        assert (values["number"], values["total"]) == (7, "Decimal('3.50')")
        with pytest.raises(ValueError, match=r"inputs\['order'\].number: expected int, got 'x'"):
            client.submit(f"{FLOWS}:typed", inputs={"order": {**order, "number": "x"}})


def test_numbers_that_json_lacks_are_returned_as_texts(server: Server, connect: Connect) -> None:
    with server.conducting():
        flow = connect(server.url).submit(f"{FLOWS}:ratios")
        assert flow.result(60) == {"ratio": ["nan", "inf", 0.5]}


def test_failure_of_the_flow_is_raised_with_masked_secrets(
    server: Server, connect: Connect
) -> None:
    with server.conducting():
        flow = connect(server.url).submit(f"{FLOWS}:failing")
        with pytest.raises(
            clients.FlowFailed, match=r"ended in REVERTED: KeyError: .*no price"
        ) as caught:
            flow.result(60)
    assert (caught.value.state, caught.value.type) == ("REVERTED", "KeyError")
    assert "hunter" not in str(caught.value)
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value) and again.state == "REVERTED"


def test_signal_ends_a_wait(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    with server.conducting():
        flow = client.submit(f"{FLOWS}:approval")
        assert not flow.wait(0.05)
        assert flow.signal("approved", {"by": "ann"}) == 1
        assert flow.result(60) == {"answer": {"by": "ann"}}
        with pytest.raises(exceptions.InvalidState, match="has ended in SUCCESS"):
            flow.signal("approved")
        assert flow.cancel() is False


def test_cancelled_flow_raises_cancelled(server: Server, connect: Connect) -> None:
    with server.conducting():
        flow = connect(server.url).submit(f"{FLOWS}:approval")
        assert flow.cancel("order withdrawn") is True
        with pytest.raises(exceptions.Cancelled, match="order withdrawn"):
            flow.result(60)


def test_published_values_are_returned_while_the_flow_runs(
    server: Server, connect: Connect
) -> None:
    with server.conducting():
        flow = connect(server.url).submit(f"{FLOWS}:publishing")
        until(lambda: flow.published(), 10.0)
        assert flow.published() == {"progress": 7}
        assert flow.state in ("RUNNING", "WAITING")
        flow.signal("go", "north")
        assert flow.result(60)["answer"] == "north"


def test_any_operation_of_the_server_is_performed(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    flow = client.submit(f"{FLOWS}:approval")
    assert client.perform("flow suspend", flow=flow.id, reason="lunch")["uuid"] == flow.id
    with pytest.raises(ValueError, match=r"Unknown operation 'flow suspen'.*flow suspend"):
        client.perform("flow suspen", flow=flow.id)
    with pytest.raises(ValueError, match="flow suspend requires argument 'flow'"):
        client.perform("flow suspend")
    with pytest.raises(exceptions.NotFound):
        client.perform("schedule run", schedule="../../flows/x?y#z")


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ({"inputs": {}}, ValueError, "amount"),
        ({"inputs": {"amount": 1}, "priority": "HUGE"}, ValueError, "priority must be one of"),
        ({"factory": "os:system"}, clients.AccessDenied, "not allowed"),
        ({"key": None}, clients.AccessDenied, "token"),
        ({"key": "a-wrong-key-0123456789"}, clients.AccessDenied, "token"),
    ],
)
def test_rejected_submission_raises_a_clear_error(
    server: Server, connect: Connect, arguments: Any, error: Any, text: str
) -> None:
    given = dict(arguments)
    client = connect(server.url, **({"key": given.pop("key")} if "key" in given else {}))
    with pytest.raises(error, match=text):
        client.submit(given.pop("factory", f"{FLOWS}:priced"), **given)
    assert server.count() == 0


def test_unknown_flow_is_not_found(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    flow = client.flow("3f2a9c00-0000-4000-8000-000000000000")
    for call in (flow.wait, flow.result, flow.cancel, flow.published):
        with pytest.raises(exceptions.NotFound):
            call()
    with pytest.raises(ValueError, match="must be a uuid"):
        client.flow("../schedules")


def test_unique_key_returns_the_first_flow_and_detects_a_conflict(
    server: Server, connect: Connect
) -> None:
    client = connect(server.url)
    order = {"unique": "order-17", "unique_for": "1h"}
    first = client.submit(f"{FLOWS}:priced", inputs={"amount": 1}, **order)
    assert client.submit(f"{FLOWS}:priced", inputs={"amount": 1}, **order).id == first.id
    with pytest.raises(exceptions.UniqueKeyConflict):
        client.submit(f"{FLOWS}:priced", inputs={"amount": 2}, **order)


def test_debounced_submission_replaces_the_first_one(server: Server, connect: Connect) -> None:
    client = connect(server.url)
    first, second = (
        client.submit(
            f"{FLOWS}:priced", inputs={"amount": amount}, queue="reports", fair_key="ann",
            debounce=("doc-7", 60), debounce_max=300,
        )
        for amount in (1, 2)
    )  # fmt: skip
    assert first.id == second.id
    (flow,) = client.flows(queue="reports")
    assert flow["uuid"] == first.id
    with pytest.raises(exceptions.TransportFailure):
        connect(server.url, transport=Lossy(1)).submit(
            f"{FLOWS}:priced", inputs={"amount": 1}, debounce=("doc-8", 60)
        )


class Lossy(httpx2.HTTPTransport):
    """A transport that loses the first responses of calls that the server has carried out."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        response = super().handle_request(request)
        if self.lost > 0:
            self.lost -= 1
            response.close()
            raise httpx2.ReadError("the connection was reset")
        return response


class AsyncLossy(httpx2.AsyncHTTPTransport):
    """A `Lossy` for asyncio."""

    def __init__(self, lost: int) -> None:
        super().__init__()
        self.lost = lost

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        response = await super().handle_async_request(request)
        if self.lost > 0:
            self.lost -= 1
            await response.aclose()
            raise httpx2.ReadError("the connection was reset")
        return response


def test_submission_with_lost_responses_stores_one_flow(server: Server, connect: Connect) -> None:
    client = connect(server.url, transport=Lossy(3))
    client.submit(f"{FLOWS}:approval")
    assert server.count() == 1


def test_call_that_a_repetition_could_double_is_not_repeated(
    server: Server, connect: Connect
) -> None:
    flow = connect(server.url).submit(f"{FLOWS}:publishing")
    lossy = connect(server.url, transport=Lossy(1))
    with pytest.raises(exceptions.TransportFailure, match="the connection was reset"):
        lossy.flow(flow.id).signal("go", 1)
    with contextlib.closing(server.backend.get_connection()) as connection:
        assert len(connection.signals([flow.id])[flow.id]) == 1
    with pytest.raises(exceptions.TransportFailure):
        connect(server.url, transport=Lossy(1)).submit(f"{FLOWS}:approval", unique="order-18")
    assert server.count() == 2


def test_server_that_starts_later_is_reached(stored: Any, connect: Connect) -> None:
    with sites.running(stored, allow_actions=True) as site:
        port = int(site.address.rstrip("/").rpartition(":")[2])
    client = connect(f"http://127.0.0.1:{port}")
    ended = threading.Event()

    def serve() -> None:
        with sites.running(stored, allow_actions=True, at_port=port):
            assert ended.wait(sites.PATIENCE)

    thread = threading.Timer(0.3, serve)
    thread.start()
    try:
        assert client.submit(f"{FLOWS}:approval").state == "PENDING"
    finally:
        ended.set()
        thread.join()


def test_unreachable_server_is_reported_after_the_time_of_repetitions(connect: Connect) -> None:
    client = connect(NOWHERE, retry_seconds=0.05)
    with pytest.raises(exceptions.TransportFailure, match="POST flows: ConnectError"):
        client.submit(f"{FLOWS}:approval")


@pytest.mark.parametrize(
    "url",
    [
        *("flows.example.com", "ftp://x", "http://ann:secret@x/", "http://x/?token=secret"),
        *("ftp://ann:secret@x", "http://ann:secret@[::1"),
    ],
)
def test_invalid_url_is_rejected_without_its_secrets(url: str, connect: Connect) -> None:
    with pytest.raises(ValueError, match="url must") as caught:
        connect(url)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    "key", ["", "wbk_secret\n", "wbk_secret\r\nx: y", "wbk_sécret", "a secret"]
)
def test_invalid_key_is_rejected_without_its_text(key: str, connect: Connect) -> None:
    with pytest.raises(ValueError, match="key must") as caught:
        connect(NOWHERE, key=key)
    assert "cret" not in str(caught.value)


@contextlib.contextmanager
def other_server(body: bytes, **headers: str) -> Iterator[str]:
    """Run a server that sends the same response to all requests. Yield its URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            for name, value in {"content-length": str(len(body)), **headers}.items():
                self.send_header(name.replace("_", "-"), value)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize(
    ("body", "headers"),
    [
        (b"{}", {}),
        (b'{"published": 5}', {}),
        (b"[]", {}),
        (b"<html>Sign in</html>", {}),
        (b'{"published": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", {}),
        (b"plain", {"content_encoding": "gzip"}),
    ],
)
def test_response_of_another_server_is_a_failed_call(
    body: bytes, headers: dict[str, str], connect: Connect
) -> None:
    with other_server(body, **headers) as url:
        flow = connect(url, retry_seconds=0).flow("3f2a9c00-0000-4000-8000-000000000000")
        with pytest.raises(exceptions.TransportFailure, match="GET flows/3f2a9c00"):
            flow.published()


@pytest.mark.parametrize("flow", ["", ".", ".."])
def test_target_that_changes_the_path_is_rejected(flow: str, connect: Connect) -> None:
    body = b'{"paths": {"/flows/{flow}/delete": {"post": {"operationId": "flow_delete"}}}}'
    message = "flow must be a name or a uuid"
    with other_server(body) as url, pytest.raises(ValueError, match=message):
        connect(url, retry_seconds=0).perform("flow delete", flow=flow)


def test_results_need_a_server_that_shows_values(stored: Any, connect: Connect) -> None:
    with sites.running(stored, allow_actions=True) as site:
        server = Server(stored, site)
        with server.conducting():
            flow = connect(server.url).submit(f"{FLOWS}:priced", inputs={"amount": 1})
            with pytest.raises(clients.AccessDenied, match="--show-values"):
                flow.result(60)


def test_remote_flow_has_the_methods_of_a_flow_handle() -> None:
    from wbengine.engines import FlowHandle

    # The API returns JSON, not the instance that a workflow returned.
    expected = {name for name in vars(FlowHandle) if not name.startswith("_")} - {"value"}
    for kind in (clients.RemoteFlow, clients.AsyncRemoteFlow):
        assert {name for name in vars(kind) if not name.startswith("_")} == expected


def test_awaiting_a_remote_flow_returns_its_values(server: Server) -> None:
    async def submit() -> Any:
        async with clients.AsyncClient(server.url, key=story.TOKEN) as client:
            flow = await client.submit(f"{FLOWS}:priced", inputs={"amount": 2})
            return await flow

    with server.conducting():
        assert asyncio.run(submit())["price"] == 6
