"""The client that blocks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import httpx2
import tenacity

from wbengine.client import _calls, _connection

__all__ = ["Client", "RemoteFlow"]

_T = TypeVar("_T")


class Client:
    """A client of the HTTP API of a dashboard (`wbengine dashboard --allow-actions`). Thread-safe.

    A call is repeated while the server is unavailable, if a second call has no further effect.

    :param url: address of the dashboard, such as 'https://flows.example.com'.
    :param key: the key or token.
    :param retry_seconds: time for which a call is repeated.
    :param http_options: arguments of `httpx2.Client`, for example `verify` or `proxy`.
    :raises ValueError: if `url` or `key` is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_seconds: float = 60.0,
        **http_options: Any,
    ) -> None:
        self._http = httpx2.Client(**_connection.options(url, key, http_options))
        self._retry = tenacity.Retrying(**_connection.repeated(retry_seconds))
        self._paths: dict[str, str] = {}

    def submit(
        self,
        factory: str,
        *,
        inputs: Mapping[str, Any] | None = None,
        arguments: Mapping[str, Any] | None = None,
        name: str | None = None,
        priority: str | None = None,
        queue: str | None = None,
        fair_key: str | None = None,
        fair_weight: float | None = None,
        eta: datetime | float | None = None,
        unique: str | None = None,
        unique_for: str | float | None = None,
        debounce: tuple[str, float] | None = None,
        debounce_max: float | None = None,
        tags: Mapping[str, str | float | bool | datetime] | None = None,
        undo_until: str | float | None = None,
    ) -> RemoteFlow:
        """Submit a flow, as `engines.submit`. It is stored when this returns.

        If a response is lost, the call is repeated and submits no second flow, except with
        `debounce`, or with `unique` and without `unique_for`: then `TransportFailure` is raised.

        :param factory: name of a flow that the server allows, such as 'orders:order_flow'.
        :param arguments: arguments of the factory by name, if it is a function with parameters.
        :raises AccessDenied: if the key or the list of allowed flows does not permit it.
        :raises ValueError: if an argument is invalid.
        :raises UniqueKeyConflict: as `engines.submit`.
        :raises TransportFailure: if the server cannot be reached.
        """
        return RemoteFlow(
            self._run(
                _calls.submit(
                    factory, inputs=inputs, arguments=arguments, name=name, priority=priority,
                    queue=queue, fair_key=fair_key, fair_weight=fair_weight, eta=eta,
                    unique=unique, unique_for=unique_for, debounce=debounce,
                    debounce_max=debounce_max, tags=tags, undo_until=undo_until,
                )
            ),
            self,
        )  # fmt: skip

    def flow(self, id: str) -> RemoteFlow:
        """Return a flow that any process submitted. This calls nothing.

        :raises ValueError: if `id` is not a uuid.
        """
        return RemoteFlow(_connection.flow_id(id), self)

    def flows(self, **filters: Any) -> Iterator[dict[str, Any]]:
        """Yield the flows that match the filters of the path `flows`, the latest first.

        :raises ValueError: if a filter is invalid.
        """
        after = None
        while True:
            page = self._run(_calls.flows_page({**filters, "after": after}))
            yield from page["flows"]
            after = page["after"]
            if after is None:
                return

    def perform(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Perform an operation of the API, such as `perform("flow retry", flow=id)`.

        :raises ValueError: if the server has no such operation, or an argument is invalid.
        :raises Exception: as `submit`.
        """
        return self._run(_calls.perform(self._paths, operation, arguments))

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exc_info: object) -> None:
        self.close()

    def _run(self, steps: _calls.Steps[_T]) -> _T:
        try:
            call = next(steps)
            while True:
                try:
                    content = self._retry(self._send, call)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = _calls.next_call(steps, call, content)
        except StopIteration as end:
            result: _T = end.value
            return result

    def _send(self, call: _calls.Call) -> Mapping[str, Any]:
        try:
            response = self._http.request(**_connection.request(call))
        except httpx2.RequestError as error:
            raise _connection.failed(error, call) from error
        return _connection.content_of(response, call)


class RemoteFlow:
    """A flow of a server, with the methods of `engines.FlowHandle`. Thread-safe.

    Each method also raises `AccessDenied`, `NotFound` and `TransportFailure`.
    """

    def __init__(self, id: str, client: Client) -> None:
        #: UUID of the flow.
        self.id: Final = id
        self._client = client

    @property
    def state(self) -> str:
        """The state, as `FlowHandle.state`."""
        return self._client._run(_calls.state(self.id))

    def wait(self, timeout: float | None = None) -> bool:
        """Wait at most `timeout` seconds until the flow has ended; return whether it has."""
        return self._client._run(_calls.wait(self.id, timeout, time.monotonic))

    def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait until the flow has ended; return all values by name, as JSON.

        The dashboard must show values (`--show-values`) and allow the flow. Secrets are masked.

        :raises TimeoutError: if the flow has not ended in time.
        :raises Cancelled: if the flow was cancelled.
        :raises FlowFailed: if the flow ended without success.
        """
        return self._client._run(_calls.result(self.id, timeout, time.monotonic))

    def cancel(self, reason: str | None = None) -> bool:
        """Cancel the flow, as `FlowHandle.cancel`. Return False if it has ended."""
        return self._client._run(_calls.cancel(self.id, reason))

    def signal(self, name: str, value: Any = None, *, strict: bool = False) -> int:
        """Send a signal to the flow, as `FlowHandle.signal`.

        If the response is lost, the call is not repeated, because a workflow receives all signals.

        :raises InvalidState: if the flow has ended.
        :raises Duplicate: if the flow has received a signal of this name.
        """
        return self._client._run(_calls.signal(self.id, name, value, strict))

    def published(self) -> dict[str, Any]:
        """Return the values that workflows of the flow published so far, by name."""
        return self._client._run(_calls.published(self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"
