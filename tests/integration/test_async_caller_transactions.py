"""Submissions in transactions of asynchronous connections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy as sa
from sqlalchemy.ext import asyncio as sa_asyncio

from tests.support import callers, conducted
from tests.support.callers import Place
from wbengine import engines, exceptions
from wbengine._sql import caller_connections, local_wakeups

AUTOCOMMIT = "must be in a transaction, but each of its statements is committed at once"
FAILED = "its transaction has failed or is closed: roll it back"
everywhere = callers.on(
    "sqlite aiosqlite",
    "postgresql asyncpg",
    "postgresql psycopg",
    "postgresql asyncpg-session",
    "postgresql asyncpg-driver",
)


class AsyncCaller:
    def __init__(self, connection: Any, transaction: Any) -> None:
        self.connection = connection
        self._transaction = transaction

    async def add(self, mark: str) -> None:
        text = f"INSERT INTO orders VALUES ('{mark}')"
        is_driver = isinstance(self.connection, asyncpg.Connection)
        await self.connection.execute(text if is_driver else sa.text(text))

    async def commit(self) -> None:
        await self._transaction.commit()

    async def rollback(self) -> None:
        await self._transaction.rollback()


@pytest.fixture
def kind(request: pytest.FixtureRequest) -> str:
    name: str = request.node.callspec.params["place"].partition(" ")[2]
    return name


@contextlib.asynccontextmanager
async def engine_of(driver: str, url: str, **options: Any) -> AsyncIterator[sa_asyncio.AsyncEngine]:
    parsed = sa.make_url(url)
    engine = sa_asyncio.create_async_engine(
        parsed.set(drivername=f"{parsed.drivername}+{driver}"), **options
    )
    yield engine
    await engine.dispose()


async def connect(url: str) -> Any:
    return await asyncpg.connect(sa.make_url(url).render_as_string(hide_password=False))


@contextlib.asynccontextmanager
async def async_caller(kind: str, url: str) -> AsyncIterator[AsyncCaller]:
    driver, _, form = kind.partition("-")
    if form == "driver":
        connection = await connect(url)
        transaction = connection.transaction()
        await transaction.start()
        yield AsyncCaller(connection, transaction)
        await connection.close()
        return
    async with engine_of(driver, url) as engine:
        if form == "session":
            async with sa_asyncio.AsyncSession(engine) as session:
                yield AsyncCaller(session, session)
        else:
            async with engine.connect() as connection:
                yield AsyncCaller(connection, connection)


async def submit(place: Place, connection: Any, **options: Any) -> engines.FlowHandle:
    return await engines.asubmit(
        callers.GREETING, inputs={"name": "Ada"}, backend=place.store, connection=connection,
        **options,
    )  # fmt: skip


def orders(place: Place) -> list[str]:
    with callers.opened("driver", place.url) as connection:
        return callers.Caller(connection).orders()


@everywhere
@pytest.mark.parametrize("commits", [True, False])
def test_flow_exists_exactly_if_the_transaction_is_committed(
    place: Place, kind: str, commits: bool
) -> None:
    async def main() -> None:
        async with async_caller(kind, place.url) as caller:
            await caller.add("x")
            handle = await submit(place, caller.connection, unique="k", tags={"amount": 5})
            with pytest.raises(exceptions.FlowNotCommitted):
                await handle
            await (caller.commit() if commits else caller.rollback())
            if commits:
                assert (await handle)["greeting"] == "hello Ada"

    with callers.caller("driver", place.url), conducted.conducting(place.store):
        asyncio.run(main())
        assert orders(place) == (["x"] if commits else [])
        assert len(place.flows()) == (1 if commits else 0)


@callers.on("sqlite aiosqlite", "postgresql asyncpg")
@pytest.mark.parametrize("mode", [None, "create_savepoint"])
def test_session_wakes_conductors_only_if_it_ends_the_transaction(
    place: Place, kind: str, mode: Any
) -> None:
    calls: list[str] = []

    async def main() -> None:
        async with engine_of(kind, place.url) as engine, engine.connect() as connection:
            await connection.execute(sa.text("INSERT INTO orders VALUES ('x')"))
            options = {} if mode is None else {"join_transaction_mode": mode}
            bind: Any = engine if mode is None else connection
            await (connection.rollback() if mode is None else asyncio.sleep(0))
            async with sa_asyncio.AsyncSession(bind, **options) as session:
                async with session.begin_nested():
                    await submit(place, session, eta=3600)
                assert calls == []
                await session.commit()
            assert calls == (["wake"] if mode is None else [])
            await connection.commit()

    wakeups, url = local_wakeups.of_process(), place.store.options.url
    with callers.caller("driver", place.url), wakeups.adding(url, lambda: calls.append("wake")):
        asyncio.run(main())
    assert len(place.flows()) == 1


@everywhere
def test_unique_key_of_another_flow_leaves_the_transaction_usable(place: Place, kind: str) -> None:
    first = place.submit(None, unique="k", unique_for="1h")

    async def main() -> None:
        async with async_caller(kind, place.url) as caller:
            second = await submit(place, caller.connection, unique="k", unique_for="1h")
            assert second.id == first.id
            with pytest.raises(exceptions.UniqueKeyConflict):
                await engines.asubmit(
                    callers.GREETING, inputs={"name": "Bob"}, backend=place.store,
                    connection=caller.connection, unique="k", unique_for="1h",
                )  # fmt: skip
            await caller.add("x")
            await caller.commit()

    with callers.caller("driver", place.url):
        asyncio.run(main())
        assert orders(place) == ["x"] and place.flows() == {first.id}


@callers.on("postgresql asyncpg")
def test_event_loop_runs_while_a_submission_waits(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(caller_connections, "LOCK_TIMEOUT_SECONDS", 1)

    async def main() -> None:
        with callers.opened("driver", place.url) as other:
            place.submit(other, unique="k")
            async with async_caller("asyncpg-driver", place.url) as caller:
                waiting = asyncio.create_task(submit(place, caller.connection, unique="k"))
                turns = 0
                while not waiting.done():
                    await asyncio.sleep(0.01)
                    turns += 1
                assert turns > 10
                with pytest.raises(exceptions.JobFailure, match="lock timeout"):
                    await waiting
                handle = await submit(place, caller.connection)
                await caller.commit()
                assert place.flows() == {handle.id}

    asyncio.run(main())


@callers.on("postgresql asyncpg")
def test_unusable_connections_are_refused(place: Place) -> None:
    async def main() -> None:
        connection = await connect(place.url)
        with pytest.raises(ValueError, match=AUTOCOMMIT):
            await submit(place, connection)
        transaction = connection.transaction()
        await transaction.start()
        with pytest.raises(asyncpg.PostgresError):
            await connection.execute("SELECT 1 / 0")
        with pytest.raises(ValueError, match=FAILED):
            await submit(place, connection)
        await transaction.rollback()
        await connection.close()
        async with (
            engine_of("asyncpg", place.url, isolation_level="AUTOCOMMIT") as engine,
            engine.connect() as automatic,
        ):
            with pytest.raises(ValueError, match=AUTOCOMMIT):
                await submit(place, automatic)

    asyncio.run(main())
    assert place.flows() == set()


@callers.on("postgresql asyncpg")
def test_connections_of_the_other_kind_are_refused(place: Place) -> None:
    async def main() -> None:
        connection = await connect(place.url)
        psycopg_connection = await psycopg.AsyncConnection.connect(place.url)
        async with engine_of("asyncpg", place.url) as engine, engine.connect() as of_sqlalchemy:
            for asynchronous in (connection, psycopg_connection, of_sqlalchemy):
                with pytest.raises(TypeError, match="connection must be a Connection or Session"):
                    place.submit(asynchronous)
            for hinted in (of_sqlalchemy, sa_asyncio.AsyncSession(engine)):
                with pytest.raises(TypeError, match=r"got Async.*: pass the .* `run_sync`"):
                    place.submit(hinted)
        with callers.opened("driver", place.url) as driver:
            for other in (driver, psycopg_connection, place.url):
                with pytest.raises(TypeError, match="connection must be an AsyncConnection"):
                    await submit(place, other)
        await psycopg_connection.close()
        await connection.close()

    asyncio.run(main())


@callers.on("postgresql asyncpg")
def test_codecs_of_the_connection_stay_as_they_were(place: Place) -> None:
    async def main() -> None:
        async with async_caller("asyncpg-driver", place.url) as caller:
            await submit(place, caller.connection)
            assert await caller.connection.fetchval("SELECT '[1]'::json") == "[1]"
            await caller.commit()

    asyncio.run(main())
    assert len(place.flows()) == 1
