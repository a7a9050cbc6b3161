"""The client for asyncio."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Generator, Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

import httpx2
import tenacity

from wbengine.client import _calls, _connection

__all__ = ["AsyncClient", "AsyncRemoteFlow"]

_T = TypeVar("_T")


class AsyncClient:
    """A `Client` for asyncio, with the same arguments, results and exceptions."""

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        retry_seconds: float = 60.0,
        **http_options: Any,
    ) -> None:
        self._http = httpx2.AsyncClient(**_connection.options(url, key, http_options))
        self._retry = tenacity.AsyncRetrying(**_connection.repeated(retry_seconds))
        self._paths: dict[str, str] = {}

    async def submit(
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
    ) -> AsyncRemoteFlow:
        """Submit a flow, as `Client.submit`."""
        return AsyncRemoteFlow(
            await self._run(
                _calls.submit(
                    factory, inputs=inputs, arguments=arguments, name=name, priority=priority,
                    queue=queue, fair_key=fair_key, fair_weight=fair_weight, eta=eta,
                    unique=unique, unique_for=unique_for, debounce=debounce,
                    debounce_max=debounce_max, tags=tags, undo_until=undo_until,
                )
            ),
            self,
        )  # fmt: skip

    def flow(self, id: str) -> AsyncRemoteFlow:
        """Return a flow that any process submitted. This calls nothing.

        :raises ValueError: if `id` is not a uuid.
        """
        return AsyncRemoteFlow(_connection.flow_id(id), self)

    async def flows(self, **filters: Any) -> AsyncIterator[dict[str, Any]]:
        """Yield flows, as `Client.flows`."""
        after = None
        while True:
            page = await self._run(_calls.flows_page({**filters, "after": after}))
            for row in page["flows"]:
                yield row
            after = page["after"]
            if after is None:
                return

    async def perform(self, operation: str, **arguments: Any) -> dict[str, Any]:
        """Perform an operation of the API, as `Client.perform`."""
        return await self._run(_calls.perform(self._paths, operation, arguments))

    async def aclose(self) -> None:
        """Close the connections."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.aclose()

    async def _run(self, steps: _calls.Steps[_T]) -> _T:
        try:
            call = next(steps)
            while True:
                try:
                    content: Mapping[str, Any] = await self._retry(self._send, call)
                except Exception as error:
                    call = steps.throw(error)
                else:
                    call = _calls.next_call(steps, call, content)
        except StopIteration as end:
            result: _T = end.value
            return result

    async def _send(self, call: _calls.Call) -> Mapping[str, Any]:
        try:
            response = await self._http.request(**_connection.request(call))
        except httpx2.RequestError as error:
            raise _connection.failed(error, call) from error
        return _connection.content_of(response, call)


class AsyncRemoteFlow:
    """A `RemoteFlow` for asyncio. Awaiting it returns the value of `result`."""

    def __init__(self, id: str, client: AsyncClient) -> None:
        #: UUID of the flow.
        self.id: Final = id
        self._client = client

    async def state(self) -> str:
        """Return the state, as `FlowHandle.state`."""
        return await self._client._run(_calls.state(self.id))

    async def wait(self, timeout: float | None = None) -> bool:
        """Wait for the end of the flow, as `RemoteFlow.wait`."""
        return await self._client._run(_calls.wait(self.id, timeout, time.monotonic))

    async def result(self, timeout: float | None = None) -> dict[str, Any]:
        """Wait for the end of the flow and return its values, as `RemoteFlow.result`."""
        return await self._client._run(_calls.result(self.id, timeout, time.monotonic))

    def __await__(self) -> Generator[Any, None, dict[str, Any]]:
        return self.result().__await__()

    async def cancel(self, reason: str | None = None) -> bool:
        """Cancel the flow, as `RemoteFlow.cancel`."""
        return await self._client._run(_calls.cancel(self.id, reason))

    async def signal(self, name: str, value: Any = None, *, strict: bool = False) -> int:
        """Send a signal to the flow, as `RemoteFlow.signal`."""
        return await self._client._run(_calls.signal(self.id, name, value, strict))

    async def published(self) -> dict[str, Any]:
        """Return the published values, as `RemoteFlow.published`."""
        return await self._client._run(_calls.published(self.id))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"
