"""Worlds with the interface of a kind of system."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import importlib
import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import httpx2
import pytest
import sqlalchemy as sa

from wbengine import databases, task
from wbengine.patterns import linear_flow
from wbengine.testing import (
    FinishedRun,
    FolderWorld,
    HttpWorld,
    KeyValueWorld,
    QueueWorld,
    Report,
    World,
    crash_everywhere,
)

#: Enough for all single faults and some pairs, on each machine.
LIMITS: Any = {"budget": 120.0, "max_runs": 80}


def run(function: Callable[..., Any], world: World | None = None, **options: Any) -> Report:
    """Run a task with all faults, before a task that can fail."""
    wrapped = task.task(idempotent=True, **options)(function)
    revert = getattr(function, "undo", None)
    if revert is not None:
        wrapped.revert(failed=True)(revert)
    return crash_everywhere(
        lambda: linear_flow.Flow("f").add(wrapped(), finish()),
        {"order": "17"},
        world=[] if world is None else world,
        **LIMITS,
    )


def undone_by(undo: Callable[..., Any]) -> Callable[[Any], Any]:
    def mark(function: Any) -> Any:
        function.undo = undo
        return function

    return mark


@task.task
def finish() -> None:
    pass


def found(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


# HTTP. --------------------------------------------------------------------------------------------


def bank_of() -> HttpWorld:
    bank = HttpWorld("bank")
    bank.on(
        "POST",
        "/charges",
        effect="charge {order}",
        undone_by=("DELETE", "/charges/{id}"),
        reply=lambda values: {"id": values["id"], "order": values["order"]},
        status=201,
    )
    bank.on("GET", "/orders/{order}/charge", find="charge {order}")
    return bank


def client_of(world: HttpWorld, library: ModuleType = httpx2) -> Any:
    return library.Client(transport=world.transport(library), base_url="https://bank.example")


@pytest.fixture(params=["httpx2", "httpx"])
def library(request: pytest.FixtureRequest) -> ModuleType:
    pytest.importorskip(request.param)
    return importlib.import_module(request.param)


def test_http_service_does_finds_and_undoes_effects(library: ModuleType) -> None:
    bank = bank_of()
    with client_of(bank, library) as client:
        assert client.get("/orders/17/charge").status_code == 404
        made = client.post("/charges", json={"order": 17})
        assert (made.status_code, made.json()) == (201, {"id": "bank-1", "order": 17})
        assert client.get("/orders/17/charge").json() == {"id": "bank-1"}
        assert bank.keys == ["charge 17"]
        assert client.delete("/charges/bank-1").status_code == 200
        assert client.delete("/charges/bank-1").status_code == 404
        assert bank.keys == []
        assert client.post("/charges", json={}).status_code == 422
        with pytest.raises(LookupError, match="no route for PUT /charges: add it with on"):
            client.put("/charges")


def test_idempotency_key_returns_first_response_and_refuses_others() -> None:
    bank = bank_of()
    bank.on("POST", "/refunds", effect="refund {order}")
    with client_of(bank) as client:

        def post(path: str, order: int, token: str) -> tuple[int, Any]:
            reply = client.post(path, json={"order": order}, headers={"idempotency-key": token})
            return reply.status_code, reply.json().get("id")

        assert post("/charges", 17, "a") == post("/charges", 17, "a") == (201, "bank-1")
        assert post("/charges", 18, "a") == (422, None)
        assert post("/charges", 18, "b") == (201, "bank-2")
        # Keys belong to a path.
        assert post("/refunds", 17, "a") == (200, "bank-3")
        assert bank.keys == ["charge 17", "charge 18", "refund 17"]
        # The response remains after the effect was undone.
        client.delete("/charges/bank-1")
        assert post("/charges", 17, "a") == (201, "bank-1")
        assert bank.keys == ["charge 18", "refund 17"]


def test_http_service_answers_asynchronous_clients(library: ModuleType) -> None:
    bank = bank_of()

    async def charge() -> int:
        async with library.AsyncClient(transport=bank.transport(library)) as client:
            response = await client.post("https://bank.example/charges", json={"order": 17})
            return int(response.status_code)

    assert (asyncio.run(charge()), bank.keys) == (201, ["charge 17"])


@pytest.mark.parametrize(
    "options", [{}, {"effect": "a", "find": "b"}, {"find": "a", "undone_by": ("DELETE", "/a")}]
)
def test_invalid_route_is_refused(options: Any) -> None:
    with pytest.raises(ValueError, match="Exactly one of effect and find"):
        HttpWorld("bank").on("GET", "/a", **options)


def charge_of(bank: HttpWorld, library: ModuleType, headers: Any) -> Any:
    def refund(order: str) -> None:
        with client_of(bank, library) as client:
            charge = client.get(f"/orders/{order}/charge")
            if charge.status_code != 404:
                client.delete(f"/charges/{charge.json()['id']}").raise_for_status()

    @undone_by(refund)
    def charge(order: str) -> str:
        with client_of(bank, library) as client:
            reply = client.post("/charges", json={"order": order}, headers=headers(order))
            return str(reply.raise_for_status().json()["id"])

    return charge


def test_charge_without_idempotency_key_is_found(library: ModuleType) -> None:
    bank = bank_of()
    report = run(charge_of(bank, library, lambda order: {}), bank)
    assert "at_most_once" in found(report), report
    finding = next(each for each in report.findings if each.check == "at_most_once")
    assert Path(__file__).name in finding.problem.line
    assert 'client.post("/charges"' in str(finding)


@pytest.mark.slow
def test_charge_with_idempotency_key_passes(library: ModuleType) -> None:
    bank = bank_of()
    report = run(charge_of(bank, library, lambda order: {"Idempotency-Key": order}), bank)
    assert report.ok, report


@pytest.mark.parametrize(("caught", "is_found"), [("ConnectError", True), ("ReadTimeout", False)])
def test_step_may_ignore_a_missing_answer_but_not_a_refused_connection(
    caught: str, is_found: bool
) -> None:
    mail = HttpWorld("mail")
    mail.on("POST", "/mails", effect="mail {order}")
    errors: set[str] = set()

    def send(order: str) -> None:
        with client_of(mail) as client:
            try:
                headers = {"Idempotency-Key": order}
                client.post("/mails", json={"order": order}, headers=headers).raise_for_status()
            except Exception as error:
                errors.add(type(error).__name__)
                if type(error).__name__ != caught:
                    raise

    report = run(send, mail)
    assert ("failures_are_reported" in found(report)) == is_found, report
    assert errors == {"ConnectError", "HTTPStatusError", "ReadTimeout"}


def test_step_that_ignores_status_503_is_found() -> None:
    mail = HttpWorld("mail")
    mail.on("POST", "/mails", effect="mail {order}")
    statuses: set[int] = set()

    def send(order: str) -> None:
        headers = {"Idempotency-Key": order}
        with client_of(mail) as client:
            statuses.add(client.post("/mails", json={"order": order}, headers=headers).status_code)

    report = run(send, mail)
    assert "failures_are_reported" in found(report), report
    assert ":busy" in str(report) and statuses == {200, 503}


# Key-value stores. --------------------------------------------------------------------------------


def test_key_value_store_has_an_effect_for_each_changed_value() -> None:
    stock = KeyValueWorld("stock", {"shoes": 5})
    stock.set("shoes", 5)
    assert stock.keys == []
    stock.set("shoes", 4)
    stock.set("shoes", 3)
    assert (stock.get("shoes"), stock.keys) == (3, ["shoes = 3"])
    stock.delete("shoes")
    assert (stock.get("shoes"), stock.get("shoes", 0), stock.keys) == (None, 0, ["shoes deleted"])
    assert stock.set_if_missing("shoes", 5) and not stock.set_if_missing("shoes", 6)
    assert (stock.get("shoes"), stock.keys) == (5, [])
    stock.delete("socks")
    assert stock.keys == []
    socks = ["a"]
    stock.set("socks", socks)
    socks.append("c")
    stock.get("socks").append("b")
    assert stock.get("socks") == ["a"]
    stock.set("long", "x" * 100_000)
    assert len(stock.keys[-1]) < 150
    stock.clear()
    assert (stock.get("socks"), stock.get("shoes")) == (None, 5)


def test_lost_update_of_repeated_step_is_found() -> None:
    stock = KeyValueWorld("stock", {"shoes": 5})

    def put_back(order: str) -> None:
        stock.set("shoes", 5)

    @undone_by(put_back)
    def take(order: str) -> None:
        stock.set("shoes", stock.get("shoes") - 1)

    report = run(take, stock)
    assert found(report) == {"same_effects"}, report
    assert "'shoes = 3' exists once" in str(report)


def test_value_that_remains_after_reversion_is_found() -> None:
    stock = KeyValueWorld("stock", {"shoes": 5})

    def take(order: str) -> None:
        stock.set("shoes", 4)

    assert found(run(take, stock)) == {"undone"}


def test_repeatable_update_passes() -> None:
    stock = KeyValueWorld("stock", {"shoes": 5})

    def put_back(order: str) -> None:
        stock.delete("state")
        stock.delete(f"reserved {order}")
        stock.set("shoes", 5)

    @undone_by(put_back)
    def take(order: str) -> None:
        if stock.set_if_missing(f"reserved {order}", 4) or stock.get("shoes") == 5:
            stock.set("shoes", 4)
        stock.set("state", "taken")
        stock.delete("state")

    report = run(take, stock)
    assert report.ok, report


# Queues. ------------------------------------------------------------------------------------------


def test_queue_discards_duplicates_with_the_same_deduplication_id() -> None:
    queue = QueueWorld("events")
    assert queue.publish({"order": 17}) == "events-1"
    assert queue.publish("tick", deduplication_id="a") == "events-2"
    assert queue.publish("tick", deduplication_id="a") == "events-2"
    assert queue.publish("tick", deduplication_id="b") == "events-3"
    assert queue.publish({"order": 17}) == "events-4"
    assert queue.messages == [{"order": 17}, "tick", "tick", {"order": 17}]


@pytest.mark.parametrize(
    ("deduplication", "checks"),
    [
        (lambda order, number: None, {"at_most_once"}),
        (lambda order, number: f"{order} {number}", {"same_effects"}),  # another one in each try
        (lambda order, number: order, set()),
    ],
    ids=["none", "new", "same"],
)
def test_duplicate_message_is_found_without_stable_deduplication_id(
    deduplication: Any, checks: set[str]
) -> None:
    queue = QueueWorld("events")
    numbers = iter(range(1_000_000))

    def announce(order: str) -> None:
        identity = deduplication(order, next(numbers))
        queue.publish({"order": order}, deduplication_id=identity)

    report = run(announce, queue)
    assert found(report) == checks, report


# Folders. -----------------------------------------------------------------------------------------


def test_folder_contains_real_files_until_it_is_cleared() -> None:
    out = FolderWorld("out")
    path = out.path
    out.write("day/a.csv", "1,2")
    out.write("b.csv", b"3")
    assert (path / "day" / "a.csv").read_bytes() == out.read("day/a.csv") == b"1,2"
    out.rename("day/a.csv", "b.csv")
    assert out.names == ["b.csv"] and not (path / "day" / "a.csv").exists()
    assert (path / "b.csv").read_bytes() == b"1,2" and out.exists("b.csv")
    assert out.keys == ["b.csv = b'1,2'"]
    out.rename("b.csv", "b.csv")
    out.delete("b.csv")
    out.delete("b.csv", missing_ok=True)
    assert out.names == out.keys == [] and not (path / "b.csv").exists()
    for call in (out.read, out.delete, lambda name: out.rename(name, "c")):
        with pytest.raises(FileNotFoundError, match=r"out contains no file 'b.csv'"):
            call("b.csv")
    out.clear()
    gc.collect()
    assert not path.exists() and out.path != path


@pytest.mark.parametrize("name", ["/etc/passwd", "../a", "a/../../b", "", "a//b", "."])
def test_file_outside_of_the_folder_is_refused(name: str) -> None:
    out = FolderWorld("out")
    for call in (out.read, out.exists, out.delete, lambda name: out.write(name, "")):
        with pytest.raises(ValueError, match="must be relative"):
            call(name)
    out.write("a", "")
    with pytest.raises(ValueError, match="must be relative"):
        out.rename("a", name)


def test_repeated_append_to_a_file_is_found() -> None:
    out = FolderWorld("out")

    def remove(order: str) -> None:
        out.delete("log", missing_ok=True)

    @undone_by(remove)
    def append(order: str) -> None:
        old = out.read("log") if out.exists("log") else b""
        out.write("log", old + order.encode())

    assert found(run(append, out)) == {"same_effects"}


@pytest.mark.parametrize("checks_first", [False, True])
def test_repeated_rename_is_found_unless_it_checks_the_result(checks_first: bool) -> None:
    out = FolderWorld("out")

    @task.task(idempotent=True)
    def write(order: str) -> None:
        out.write("draft", order)

    @task.task(idempotent=True)
    def publish(order: str) -> None:
        if not (checks_first and out.exists("final")):
            out.rename("draft", "final")

    for each in (write, publish):

        @each.revert(failed=True)
        def remove(order: str) -> None:
            for name in ("draft", "final"):
                out.delete(name, missing_ok=True)

    report = crash_everywhere(
        lambda: linear_flow.Flow("f").add(write(), publish()),
        {"order": "17"},
        world=out,
        **LIMITS,
    )
    assert report.ok == checks_first, report
    assert found(report) <= {"same_state"}


# Databases. ---------------------------------------------------------------------------------------


class Shop:
    """A table in SQLite that is empty at the begin of each run."""

    def __init__(self, path: Path) -> None:
        self.url = f"sqlite:///{path}"
        self.path = path
        self.runs = 0
        with contextlib.closing(sqlite3.connect(path)) as connection:
            connection.execute("CREATE TABLE charges (number TEXT)")

    def charges_once(self, run: FinishedRun) -> None:
        """An own check: the rows are those of the end of the flow."""
        self.runs += 1
        with contextlib.closing(sqlite3.connect(self.path)) as connection, connection:
            rows = [number for (number,) in connection.execute("SELECT number FROM charges")]
            connection.execute("DELETE FROM charges")
        wanted = ["17"] if run.state == "SUCCESS" else []
        assert rows == wanted, f"the flow ended in {run.state} with the charges {rows}"


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    found = Shop(tmp_path / "shop.db")
    databases.register("shop", found.url)
    yield found


def run_in_shop(shop: Shop, charge: Any) -> Report:
    return crash_everywhere(
        lambda: linear_flow.Flow("f").add(charge(), finish()),
        {"order": "17"},
        checks=[shop.charges_once],
        budget=120,
        max_runs=40,
    )


def insert(connection: Any, order: str) -> None:
    connection.execute(sa.text("INSERT INTO charges VALUES (:order)"), {"order": order})


def delete(connection: Any, order: str) -> None:
    connection.execute(sa.text("DELETE FROM charges WHERE number = :order"), {"order": order})


def test_transactional_step_changes_the_database_once(shop: Shop) -> None:
    charge = task.task(idempotent=True, transaction="shop")(insert)
    charge.revert(delete)
    report = run_in_shop(shop, charge)
    assert report.ok, report
    assert shop.runs == report.runs and report.singles_run == report.singles > 20


def test_step_with_own_transaction_is_found(shop: Shop) -> None:
    engine = sa.create_engine(shop.url)

    @task.task(idempotent=True)
    def charge(order: str) -> None:
        with engine.begin() as connection:
            insert(connection, order)

    @charge.revert(failed=True)
    def refund(order: str) -> None:
        with engine.begin() as connection:
            delete(connection, order)

    report = run_in_shop(shop, charge)
    engine.dispose()
    assert "charges_once" in found(report), report
    assert "the charges ['17', '17']" in str(report)
