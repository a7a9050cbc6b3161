"""Flows and workflows with typical faults, and right ones that do the same kinds of work.

Each program in `FAULTY` has one fault, which its docstring or that of its first task explains. The
programs in `RIGHT` leave nothing done twice and nothing behind, whatever fails. All of them have
the inputs `INPUTS`, and change the outside systems `WORLDS`.
"""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import logging
import os
import random
import threading
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from wbengine import retry, task
from wbengine.patterns import graph_flow, linear_flow, unordered_flow
from wbengine.steps import AsyncSteps, Steps
from wbengine.testing import Report, World

LOG = logging.getLogger(__name__)

BANK = World("bank")
DEPOT = World("depot")
MAIL = World("mail", permanent=True)
INDEX = World("index", permanent=True, repeatable=True)
WORLDS = (BANK, DEPOT, MAIL, INDEX)
INPUTS: dict[str, Any] = {"order": "17", "parts": ["lamp", "desk", "sofa"]}


class Program(NamedTuple):
    """A flow, or a function that returns one, and the check that finds its fault.

    :ivar check: None if the program is right, or if no check finds its fault.
    :ivar exceptions: the exceptions that the service of a task raises, by name of the task.
    """

    flow: Any
    check: str | None = None
    signals: Mapping[str, Any] = {}
    exceptions: Mapping[str, Any] = {}


class Declined(Exception):
    """The bank refuses the card."""


def flow_of(*tasks: Any) -> Callable[[], linear_flow.Flow]:
    """Return a function that returns a flow with a new instance of each task."""
    return lambda: linear_flow.Flow("flow").add(*(each() for each in tasks))


def checks_of(report: Report) -> set[str]:
    return {finding.check for finding in report.findings}


# Right tasks of several programs.


@task.task(provides="payment")
def charge(order: str) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=f"charge-{order}")


@charge.revert(failed=True)
def refund(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)


@task.task
def ship(order: str) -> str:
    return DEPOT.effect(f"shipment {order}", idempotency_key=f"ship-{order}")


@ship.revert(failed=True)
def return_shipment(order: str) -> None:
    DEPOT.undo(f"shipment {order}", missing_ok=True)


@task.task
def charge_with_key(order: str, key: str) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=key)


charge_with_key.revert(failed=True)(refund)


@task.task
def send_part(part: str, order: str) -> str:
    key = f"{part} of {order}"
    return DEPOT.effect(key, idempotency_key=key)


@send_part.revert(failed=True)
def fetch_back(part: str, order: str) -> None:
    DEPOT.undo(f"{part} of {order}", missing_ok=True)


@task.task
def write_letter(order: str) -> None:
    MAIL.effect(f"letter {order}", idempotency_key=f"letter-{order}")


@task.task
def add_to_index(order: str) -> None:
    INDEX.effect(f"order {order}")


# Faults of tasks and their reversions.


@task.task(idempotent=True)
def charge_without_key(order: str) -> str:
    """Charge a card, and declare `idempotent = True`, but pass no idempotency key.

    If the process dies after the bank has booked the amount, or the worker is lost, the task runs
    again and the customer pays twice. The option describes the task; it does not make its effect
    repeatable.
    """
    return BANK.effect(f"charge {order}")


charge_without_key.revert(failed=True)(refund)


@task.task
def charge_without_revert(order: str) -> str:
    """Charge a card without a `revert`.

    If a later task fails, or the flow is cancelled, the rest is undone but the customer has paid.
    """
    return BANK.effect(f"charge {order}", idempotency_key=order)


class ShipByResult(task.Task):
    """Ship a parcel, and take its key from the result of `execute` in `revert`.

    If the call fails after the depot has shipped the parcel, or the worker is lost, `result` is a
    failure, and `revert` raises `TypeError`. The flow ends in FAILURE.
    """

    def execute(self, order: str) -> dict[str, str]:
        key = f"shipment {order}"
        return {"key": key, "id": DEPOT.effect(key, idempotency_key=key)}

    def revert(self, result: Any) -> None:
        DEPOT.undo(result["key"], missing_ok=True)


@task.task
def charge_with_revert_of_success(order: str) -> str:
    """Charge a card, and wait for the booking.

    The charge exists as soon as the bank has accepted the call, but the task raises `TimeoutError`
    if the answer is late. Then the engine does not call `refund`, because a function given to
    `revert` without `failed=True` runs only after executions that succeeded or may have succeeded.
    """
    payment = BANK.effect(f"charge {order}", idempotency_key=order)
    if not BANK.has(f"charge {order}"):
        raise TimeoutError(f"{order} is not booked")
    return payment


charge_with_revert_of_success.revert(refund)


@task.task
def charge_with_strict_refund(order: str) -> str:
    """Charge a card, and always ask the bank to take the payment back.

    `strict_refund` is called after each execution, also a failed one, and can run twice. If the
    payment never happened, or an earlier call has taken it back before the process died, the bank
    refuses. The reversion stops there, and the flow stays in FAILURE.
    """
    return BANK.effect(f"charge {order}", idempotency_key=order)


@charge_with_strict_refund.revert(failed=True)
def strict_refund(order: str) -> None:
    BANK.undo(f"charge {order}")


@task.task
def transfer(order: str) -> str:
    """Move money with two effects, and first ask whether it has run before.

    The answer is about the first effect only. If the process dies between the debit and the credit,
    the next run sees the debit, returns, and the flow succeeds: the money never arrives.
    """
    if BANK.has(f"debit {order}"):
        return "done before"
    BANK.effect(f"debit {order}")
    BANK.effect(f"credit {order}")
    return "done"


@transfer.revert(failed=True)
def transfer_back(order: str) -> None:
    BANK.undo(f"credit {order}", missing_ok=True)
    BANK.undo(f"debit {order}", missing_ok=True)


@task.task(retries=3, backoff=0.01, retry_on=ConnectionError)
def retry_without_key(order: str) -> str:
    """Pay out a prize with retries, because the bank is often slow.

    A `ConnectionError` does not say whether the bank has executed the order. Without an idempotency
    key, each retry after a lost answer pays the prize again. `refund` does not run between the
    attempts, because they failed.
    """
    return BANK.effect(f"charge {order}")


retry_without_key.revert(refund)


@task.task(idempotent=True, retries=2, backoff=0.01, retry_on=ConnectionError)
def retry_with_new_keys(self: task.Task, order: str) -> str:
    """Pay a salary with retries, and with `self.request.id` as idempotency key.

    That id is equal for the copies of one request, but each retry is another request.
    """
    assert self.request is not None
    return BANK.effect(f"charge {order}", idempotency_key=self.request.id)


retry_with_new_keys.revert(refund)


@task.task
def swallow_failure(order: str) -> None:
    """Charge a card, and suppress every exception, so that a defect does not delay the customer.

    The task then succeeds although nothing was charged.
    """
    try:
        BANK.effect(f"charge {order}", idempotency_key=order)
    except Exception:
        LOG.warning("the charge of %s is delayed", order)


swallow_failure.revert(failed=True)(refund)


@task.task
def charge_with_new_name(order: str) -> None:
    """Charge a card under another name in each execution."""
    BANK.effect(f"charge {uuid.uuid4()}")


@charge_with_new_name.revert(failed=True)
def refund_all(order: str) -> None:
    for key in BANK.keys:
        BANK.undo(key)


@task.task
def charge_in_thread(order: str) -> None:
    """Charge a card without an idempotency key, in another thread."""
    errors: list[BaseException] = []

    def work() -> None:
        try:
            BANK.effect(f"charge {order}")
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]


charge_in_thread.revert(failed=True)(refund)


@task.task
def count(order: str) -> str:
    """Count an order, and undo in the own `revert` what `charge` did."""
    return BANK.effect(f"count {order}", idempotency_key=f"count-{order}")


@count.revert(failed=True)
def undo_charge_and_count(order: str) -> None:
    BANK.undo(f"charge {order}", missing_ok=True)
    BANK.undo(f"count {order}", missing_ok=True)


@task.task
def create_network(order: str) -> str:
    return DEPOT.effect(f"network {order}", idempotency_key=f"network-{order}")


@create_network.revert(failed=True)
def delete_network(order: str) -> None:
    if set(DEPOT.keys) - {f"network {order}"}:
        raise RuntimeError(f"the network {order} is in use")
    DEPOT.undo(f"network {order}", missing_ok=True)


def parallel_undo() -> linear_flow.Flow:
    """Create a network, and a server (`ship`) in it, without an order between them.

    The flow succeeds because the engine happens to start the network first. After a failure, tasks
    without an order are reverted at the same time or in any order: the provider refuses to delete a
    network with a server, and the network stays.
    """
    parts = unordered_flow.Flow("parts").add(create_network(), ship())
    return linear_flow.Flow("site").add(parts, charge())


MEMORY: list[str] = []


@task.task(provides="place")
def remember(order: str) -> str:
    MEMORY.append(order)
    return "memory"


@task.task(provides="count")
def recall(order: str, place: str) -> int:
    return len(MEMORY)


ROWS: list[str] = []


@task.task
def extract(order: str) -> None:
    ROWS[:] = [f"{order}-1", f"{order}-2"]


@task.task
def load(order: str) -> None:
    """Load the rows that `extract` put into a list of the module.

    A result survives the process, a list of the module does not: if another process or another
    worker runs `load`, the list is empty. Nothing is loaded, and the flow succeeds.
    """
    for row in ROWS:
        DEPOT.effect(f"row {row}", idempotency_key=row)
    ROWS.clear()


@load.revert(failed=True)
def unload(order: str) -> None:
    for number in (1, 2):
        DEPOT.undo(f"row {order}-{number}", missing_ok=True)


RISKS: dict[str, str] = {}


@task.task
def assess(order: str) -> str:
    RISKS["latest"] = "high"
    return RISKS["latest"]


def decider_on_memory() -> graph_flow.Flow:
    """Assess a loan and open a file for it, then pay it out, after a review if its risk is high.

    The decider does not read the result of the assessment, but a variable of the module that the
    task has set. If the process dies after the assessment, or a worker has run it, the decider sees
    no risk, and a risky loan is paid out without review.
    """
    assessment, file, review, payment = assess(), add_to_index(), write_letter(), charge()
    loan = graph_flow.Flow("loan").add(assessment, file, review, payment).link(assessment, file)
    is_risky = lambda history: RISKS.get("latest") == "high"  # noqa: E731
    loan.link(file, review, decider=is_risky, decider_depth="atom")
    return loan.link(review, payment)


def key_after_refund() -> linear_flow.Flow:
    """Charge a card and ship the order; if the shipment fails, try both again.

    Each attempt charges with the same idempotency key. After a failed attempt the engine refunds
    the charge, and the bank answers the key of the second attempt with the id of the first charge.
    The flow succeeds, and the shop never receives the money.
    """
    attempts = retry.Times(3, backoff=0.01)
    return linear_flow.Flow("delivery", retry=attempts).add(charge(), ship())


@task.task
def announce(part: str) -> None:
    MAIL.effect(f"news of {part}", idempotency_key=f"news-{part}")


@task.task
def close(order: str, sent: list[Any]) -> int:
    INDEX.effect(f"order {order}")
    return len(sent)


def half_of_map() -> linear_flow.Flow:
    """Announce the parts of an order and close the order.

    The Map collects failures instead of failing, and `close` does not look at the list of results.
    If one part cannot be announced, no system expects to announce it later.
    """
    parts = task.Map(
        announce("announce"), over="parts", item="part", provides="sent", on_item_failure="collect"
    )
    return linear_flow.Flow("parts").add(parts, close())


@task.task
def create_cluster(order: str, region: str) -> str:
    return DEPOT.effect(f"cluster {region}", idempotency_key=f"{order}-{region}")


@create_cluster.revert(failed=True)
def delete_home_cluster(order: str) -> None:
    DEPOT.undo("cluster oslo", missing_ok=True)


def wrong_region_reverted() -> linear_flow.Flow:
    """Create a cluster in the first region that has enough machines, and write a letter.

    `delete_home_cluster` takes the home region of the customer instead of the region of the
    attempt. If a cluster abroad fails later, the engine deletes the cluster of the home region,
    which the provider accepts, and the other cluster stays.
    """
    regions = retry.ForEach(["bern", "oslo"], name="regions", provides="region")
    return linear_flow.Flow("cluster", retry=regions).add(create_cluster(), write_letter())


# Faults of workflows.


@task.workflow
def effect_in_body(steps: Steps, order: str) -> None:
    """Charge a card, and call another system itself instead of in a step.

    After each crash or suspension the function is called again from its start, so the system
    receives the same call once more. If the flow is cancelled, no `revert` takes it back.
    """
    steps.run(charge, order)
    DEPOT.effect(f"menu {order}")
    steps.run(write_letter, order)


@task.workflow
def clock_in_arguments(steps: Steps, order: str) -> None:
    """Charge a card with a key that contains the time, and send a letter.

    The workflow reads the clock of the host in a helper, which no check of its code examines. After
    a crash it calls the step with other arguments than the recorded ones, and the flow is blocked.
    """
    steps.run(charge_with_key, order, time_of_host())
    steps.run(write_letter, order)


def time_of_host() -> str:
    return (dt.datetime.now(dt.UTC) + dt.timedelta(days=30)).isoformat()


@task.workflow
def clock_in_body(steps: Steps, order: str) -> bool:
    return time.time() > 0 or dt.datetime.now(tz=dt.UTC).hour > 12


@task.workflow
def uuid_in_body(steps: Steps, order: str) -> None:
    """Charge a card with an idempotency key from `uuid.uuid4`.

    Each run of the function computes another one. If the process dies during the charge, the
    recorded step has the old key and the new call another.
    """
    steps.run(charge_with_key, order, new_key())
    steps.run(ship, order)


def new_key() -> str:
    return str(uuid.uuid4())


@task.workflow
def random_in_body(steps: Steps, order: str) -> str:
    return random.choice([order, order])


@task.workflow
def order_of_set(steps: Steps, order: str) -> None:
    """Send several parts, each of them once, in the order of a set.

    The order of a set of texts is another one in each process. If the process dies after the first
    steps, the next process calls other steps at these positions.
    """
    for part in {"mail", "wiki", "payroll", "build", "vpn"}:
        steps.run(send_part, part, order)


NUMBERS = itertools.count(1001)


@task.workflow
def counter_in_module(steps: Steps, order: str) -> None:
    """Charge a card with a number from a counter of the module.

    A replay in the same process receives the next number, and a new process starts again.
    """
    steps.run(charge_with_key, order, f"number {next(NUMBERS)}")
    steps.run(write_letter, order)


@task.workflow
def provider_from_environment(steps: Steps, order: str) -> None:
    """Charge a card at the provider that the environment of the process names.

    If a deployment changes the variable, or another host without it continues the flow, the
    function calls the step of the other provider.
    """
    is_express = os.environ.get("PARCEL_PROVIDER") == "express"
    steps.run(charge_without_key if is_express else charge, order)
    steps.run(ship, order)


@task.workflow
def charged_before_approval(steps: Steps, order: str) -> str:
    """Buy a machine if a manager approves it within an hour, but charge it before.

    If the manager does not answer in time, the workflow returns normally. It has succeeded, so
    nothing is reverted.
    """
    steps.run(charge, order)
    if not steps.wait_for("approved", timeout=3600, default=False):
        return "not approved"
    return steps.run(ship, order)


@task.workflow
async def hold_without_timeout(steps: AsyncSteps, order: str) -> None:
    """Hold a room until the guest confirms, without a timeout.

    Guests who close the page never send the signal: the flow waits without end, and so does the
    hold, which only the end of the flow would release.
    """
    await steps.run(ship, order)
    await steps.wait_for("approved")
    await steps.run(write_letter, order)


@task.workflow
async def trip_without_hotel(steps: AsyncSteps, order: str) -> None:
    """Book a flight, a hotel and a car in parallel, and send the itinerary.

    The workflow gathers the bookings with `return_exceptions=True` and never looks at the results.
    If one booking fails, the others remain and the itinerary is sent.
    """
    bookings = (steps.run(send_part, part, order) for part in ("flight", "hotel", "car"))
    await asyncio.gather(*bookings, return_exceptions=True)
    await steps.run(write_letter, order)


@task.task(retries=5, backoff=0.01, retry_on=ConnectionError)
def is_shipped(order: str, polls: int) -> bool:
    return polls > 1 and DEPOT.has(f"shipment {order}")


@task.workflow
def endless_poll(steps: Steps, order: str) -> None:
    """Start a shipment, poll it until it is complete, and charge it.

    The depot refuses a second shipment, so the workflow suppresses each failure of the start, and
    the loop has no limit. If the start fails for another reason, the workflow polls without end.
    """
    try:
        steps.run(ship, order)
    except Exception as error:
        LOG.info("the shipment has started: %s", error)
    while not steps.run(is_shipped, order, 2):
        steps.sleep(0.01)
    steps.run(charge, order)


@task.task
def ask_and_order(order: str, done: list[str]) -> str | None:
    """Ask a model for the next item, and order it with the id of the call as idempotency key.

    If the process dies after the order and before the result of the step is stored, the model is
    asked again and gives its call a new id, so the shop accepts a second order.
    """
    missing = [item for item in ("paper", "ink") if item not in done]
    if not missing:
        return None
    DEPOT.effect(f"{missing[0]} of {order}", idempotency_key=new_key())
    return missing[0]


@ask_and_order.revert(failed=True)
def cancel_order(order: str, done: list[str]) -> None:
    for item in {"paper", "ink"}.difference(done):
        DEPOT.undo(f"{item} of {order}", missing_ok=True)


@task.workflow
def agent_orders_twice(steps: Steps, order: str) -> list[str]:
    done: list[str] = []
    while len(done) < 5 and (item := steps.run(ask_and_order, order, list(done))) is not None:
        done.append(item)
    steps.run(write_letter, order)
    return done


@task.task
def store_result(order: str) -> str:
    if not BANK.has(f"charge {order}"):
        raise LookupError("the sandbox with the logs of the test does not exist")
    return DEPOT.effect(f"shipment {order}", idempotency_key=f"result-{order}")


store_result.revert(failed=True)(return_shipment)


@task.workflow
def cleanup_in_finally(steps: Steps, order: str) -> None:
    """Create a sandbox (`charge`), wait for a test in it, and delete it in a `finally` block.

    This block runs at the end of each run, also if the flow is only parked or suspended while it
    waits: then the sandbox is deleted during the test. If the process is killed or the flow is
    cancelled afterwards, the block may not run at all, and the sandbox stays.
    """
    try:
        steps.run(charge_without_revert, order)
        steps.wait_for("approved", timeout=3600)
        steps.run(store_result, order)
    finally:
        BANK.undo(f"charge {order}", missing_ok=True)


PARTS = ("bucket", "user", "credentials")


@task.task
def create_part(order: str, part: str) -> str:
    return DEPOT.effect(f"{part} {order}", idempotency_key=f"{part}-{order}")


@task.task
def delete_part(order: str, part: str) -> None:
    DEPOT.undo(f"{part} {order}", missing_ok=True)


@task.workflow
def compensation_in_except(steps: Steps, order: str) -> list[str]:
    """Create a bucket, a user for it and the credentials of the user.

    The workflow undoes its work itself in `except Exception`, and its tasks have no `revert`. A
    cancellation or a passed deadline ends the function with an exception that is no `Exception`,
    and a flow that is reverted does not call the function at all. Then nothing is deleted.
    """
    try:
        return [steps.run(create_part, order, part) for part in PARTS]
    except Exception:
        for part in reversed(PARTS):
            steps.run(delete_part, order, part)
        raise


@task.workflow
def fallback_after_timeout(steps: Steps, order: str) -> None:
    """Pay with the first provider, or with the second one if the first does not answer.

    A timeout does not say that nothing happened. If the first provider has booked the amount and
    only its answer was late, the workflow pays with the second provider, too. An exception that is
    caught in the function reverts nothing, so the customer pays twice.
    """
    try:
        steps.run(charge, order)
    except TimeoutError:
        steps.run(ship, order)


APPROVED = {"approved": True}

FAULTY: Mapping[str, Program] = {
    "charge_without_key": Program(flow_of(charge_without_key, ship), "at_most_once"),
    "charge_without_revert": Program(
        flow_of(charge_without_revert, ship), "undone", exceptions={"ship": (Declined,)}
    ),
    "revert_needs_result": Program(flow_of(ShipByResult, charge), "reversible"),
    "revert_of_success": Program(
        flow_of(charge_with_revert_of_success, ship), "undone",
        exceptions={"charge_with_revert_of_success": (TimeoutError,)},
    ),
    "strict_refund": Program(flow_of(charge_with_strict_refund, ship), "nothing_missing"),
    "transfer_in_one_task": Program(flow_of(transfer, add_to_index), "same_effects"),
    "retry_without_key": Program(
        flow_of(retry_without_key, write_letter), "at_most_once",
        exceptions={"retry_without_key": (ConnectionError,)},
    ),
    "retry_with_new_keys": Program(
        flow_of(retry_with_new_keys, ship), "undone",
        exceptions={"retry_with_new_keys": (ConnectionError,)},
    ),
    "swallowed_failure": Program(flow_of(ship, swallow_failure), "failures_are_reported"),
    "new_name": Program(flow_of(charge_with_new_name), "same_effects"),
    "charge_in_thread": Program(flow_of(charge_in_thread), "at_most_once"),
    "wrong_order_of_reversion": Program(flow_of(charge, count, add_to_index), "undone_in_order"),
    "parallel_undo": Program(parallel_undo, "reversible"),
    "count_in_global": Program(flow_of(remember, recall), "same_result"),
    "rows_in_global": Program(flow_of(extract, load, charge), "same_effects"),
    "decider_on_memory": Program(decider_on_memory, "same_effects"),
    "key_after_refund": Program(
        key_after_refund, "known_effects_exist",
        exceptions={"ship": (ConnectionError,)},
    ),
    # Only its author knows what is right.
    "half_of_map": Program(half_of_map, exceptions={"announce": (ConnectionError,)}),
    "wrong_region_reverted": Program(wrong_region_reverted, "undone"),
    "effect_in_body": Program(effect_in_body, "in_steps"),
    "clock_in_body": Program(clock_in_body, "replayable"),
    "random_in_body": Program(random_in_body, "replayable"),
    "clock_in_arguments": Program(clock_in_arguments, "replayable"),
    "uuid_in_body": Program(uuid_in_body, "replayable"),
    # It needs another hash seed.
    "order_of_set": Program(order_of_set),
    "counter_in_module": Program(counter_in_module, "replayable"),
    "provider_from_environment": Program(provider_from_environment, "replayable"),
    # Only its author knows what is right.
    "charged_before_approval": Program(charged_before_approval, signals=APPROVED),
    "hold_without_timeout": Program(hold_without_timeout, "ends", signals=APPROVED),
    "trip_without_hotel": Program(
        trip_without_hotel, "failed_steps_leave_nothing", exceptions={"send_part": (LookupError,)}
    ),
    "endless_poll": Program(endless_poll, "ends", exceptions={"ship": (ConnectionError,)}),
    "agent_orders_twice": Program(agent_orders_twice, "at_most_once"),
    "cleanup_in_finally": Program(cleanup_in_finally, "in_steps", signals=APPROVED),
    "compensation_in_except": Program(compensation_in_except, "undone"),
    "fallback_after_timeout": Program(
        fallback_after_timeout, "failed_steps_leave_nothing", exceptions={"charge": (TimeoutError,)}
    ),
}  # fmt: skip


def forget() -> None:
    """Clear the variables of this module, as in a new process."""
    for variable in (MEMORY, ROWS, RISKS):
        variable.clear()


# Right programs.


@task.task
def unpack(order: str) -> None:
    """Undo the effect of an earlier step."""
    DEPOT.undo(f"shipment {order}", missing_ok=True)


class TransferOnce(task.Task):
    """Transfer money with an old bank that has no idempotency keys.

    With `idempotent = False` no other worker repeats the transfer: a lost worker fails it. In the
    process of the engine an interrupted task runs again, so `execute` first asks the bank. `revert`
    receives a failure as `result` in these cases, ignores it, and asks the bank what to undo.
    """

    idempotent = False

    def execute(self, order: str) -> str:
        key = f"transfer {order}"
        return "sent before" if BANK.has(key) else BANK.effect(key)

    def revert(self, order: str, result: Any) -> None:
        if BANK.has(f"transfer {order}"):
            BANK.undo(f"transfer {order}")


@task.task
def count_stock(order: str) -> int:
    return 0 if DEPOT.has(f"shipment {order}") else 1


def decider_on_result() -> graph_flow.Flow:
    """Send an article from stock, or buy it if none is left, and tell the customer.

    The deciders read only the stored result of the check, so each process that continues the flow
    takes the same branch, also if the stock has changed meanwhile.
    """
    count, mail, parcel, purchase = count_stock("count"), write_letter(), ship(), charge()
    graph = graph_flow.Flow("article").add(count, parcel, purchase, mail)
    graph.link(count, parcel, decider=lambda history: history["count"] > 0)
    graph.link(count, purchase, decider=lambda history: history["count"] == 0)
    return graph.link(parcel, mail).link(purchase, mail).join(mail, "any")


@task.task(provides="key")
def create_key() -> str:
    return new_key()


@task.task
def ship_with_key(order: str, key: str) -> str:
    return DEPOT.effect(f"shipment {order}", idempotency_key=key)


ship_with_key.revert(failed=True)(return_shipment)


def key_of_each_try() -> linear_flow.Flow:
    """Charge a card and ship the order; if one of them fails, try both again.

    A bank does not execute a key again after a refund, so each try needs a new key, but a repeated
    execution within a try needs the same one. A task creates the key: its result is stored before
    the charge starts, differs in each try and each run, and is not an effect.
    """
    attempts = retry.Times(3, backoff=0.01, retry_on=ConnectionError)
    members = create_key(), charge_with_key(), ship_with_key()
    return linear_flow.Flow("delivery", retry=attempts).add(*members)


@task.task
def create_server(host: str, network: str) -> str:
    return DEPOT.effect(f"server {host}", idempotency_key=f"server-{host}")


@create_server.revert(failed=True)
def delete_server(host: str) -> None:
    DEPOT.undo(f"server {host}", missing_ok=True)


def network_before_server() -> graph_flow.Flow:
    """Create a network, and two servers in it.

    The order follows from the names: a server requires the network. So the engine also undoes the
    work in the opposite order, and no network is deleted while it is in use.
    """
    graph = graph_flow.Flow("site").add(create_network(provides="network"))
    return graph.add(*(create_server(f"create {host}", inject={"host": host}) for host in "ab"))


@task.task(idempotent=True, retries=2, backoff=0.01, retry_on=ConnectionError)
def index_part(part: str) -> str:
    INDEX.effect(f"part {part}")
    return dt.datetime.now(dt.UTC).isoformat()


@task.task(idempotent=True)
def move_cursor(order: str, times: list[str]) -> str:
    BANK.effect(f"cursor {order}", idempotency_key=f"cursor-{order}")
    return max(times)


@move_cursor.revert(failed=True)
def set_back_cursor(order: str) -> None:
    BANK.undo(f"cursor {order}", missing_ok=True)


def rows_then_cursor() -> linear_flow.Flow:
    """Copy parts into a search index, then remember in a cursor how far they were copied.

    Writing a part replaces that of the same name. It can be repeated, and needs no undo if the flow
    fails later. The cursor moves only after all parts are written. The time of each write is a
    result that differs in each run, but no effect depends on it.
    """
    writes = task.Map(index_part("write"), over="parts", item="part", provides="times")
    return linear_flow.Flow("copy").add(writes, move_cursor())


class StartJob(task.Task):
    """Start a job with `self.request.id` as idempotency key.

    This is sufficient because the task is detached: if the process of the engine dies, the next one
    continues the same execution with the same id.
    """

    default_provides = "key"
    detached = True
    idempotent = True

    def execute(self, order: str) -> str:
        assert self.request is not None
        return DEPOT.effect(f"shipment {order}", idempotency_key=self.request.id)

    def revert(self, order: str) -> None:
        DEPOT.undo(f"shipment {order}", missing_ok=True)


@task.workflow
def card_after_card(steps: Steps, order: str) -> None:
    """Charge the first card that the bank accepts, then ship the order.

    Each try is a scope: if it fails, also after the bank has booked the amount, the scope refunds
    the charge before the next card is tried. The key comes from `steps.uuid4()`: a replay repeats
    it, and each card has another one. If the bank refuses all cards, the workflow fails.
    """
    for _ in ("credit", "debit"):
        try:
            with steps.scope():
                payment = steps.run(charge_with_key, order, str(steps.uuid4()))
        except Declined:
            continue
        steps.run(ship_with_key, order, payment)
        return
    raise Declined("the bank accepts no card")


class NotConfirmed(Exception):
    """The guest has not confirmed in time."""


@task.workflow
def hold_with_timeout(steps: Steps, order: str) -> str:
    """Hold a room until the guest confirms, then charge the guest.

    If the guest does not answer in time, an exception leaves the scope, which releases the room,
    and the workflow ends in SUCCESS with another result. The card is charged only after the
    confirmation. A signal that arrives later changes nothing.
    """
    try:
        with steps.scope():
            steps.run(ship, order)
            if steps.wait_for("approved", timeout=3600, default=None) is None:
                raise NotConfirmed
    except NotConfirmed:
        return "released"
    steps.run(charge, order)
    return "booked"


@task.workflow
def time_of_steps(steps: Steps, order: str) -> str:
    """Charge a card with a key that contains the time, and send a letter.

    The time is that of `steps.now()`, so a replay computes the same one. The workflow logs its
    progress: a replay writes these lines once more, which does no harm. The result differs between
    two runs of the workflow, but not between replays.
    """
    valid_until = (steps.now() + dt.timedelta(days=30)).date().isoformat()
    LOG.info("order %s is valid until %s", order, valid_until)
    payment = steps.run(charge_with_key, order, f"{valid_until} {steps.uuid4()}")
    steps.sleep(0.01)
    LOG.info("letter with %s is sent", payment)
    steps.run(write_letter, order)
    return f"{payment} {valid_until}"


@task.workflow
async def trip_in_parallel(steps: AsyncSteps, order: str) -> list[str]:
    """Book a flight, a hotel and a car in parallel, then send the itinerary.

    The bookings are coroutines of an `asyncio.TaskGroup`. If one of them fails, the group waits for
    the others, its exception leaves the workflow, and the engine cancels all bookings.
    """
    async with asyncio.TaskGroup() as group:
        bookings = [
            group.create_task(steps.run(send_part, part, order))
            for part in ("flight", "hotel", "car")
        ]
    await steps.run(write_letter, order)
    return [booking.result() for booking in bookings]


@task.task(idempotent=True, retries=3, backoff=0.01)
async def ask_model(done: list[str]) -> dict[str, str] | None:
    missing = [item for item in ("paper", "ink") if item not in done]
    return {"id": new_key(), "item": missing[0]} if missing else None


@task.task(idempotent=True)
async def order_item(call: dict[str, str]) -> str:
    return DEPOT.effect(f"order of {call['item']}", idempotency_key=call["id"])


@order_item.revert(failed=True)
async def cancel_item(call: dict[str, str]) -> None:
    DEPOT.undo(f"order of {call['item']}", missing_ok=True)


@task.workflow
async def agent_with_call_ids(steps: AsyncSteps, order: str) -> list[str]:
    """Let an agent order office supplies: a model selects an item, a tool orders it.

    The answer of the model is stored before the tool starts, so a repeated execution of the tool
    has the same id of the call as idempotency key. Only the question to the model, which has no
    effect, is retried. The number of turns is limited.
    """
    done: list[str] = []
    for _ in range(5):
        call = await steps.run(ask_model, list(done))
        if call is None:
            break
        await steps.run(order_item, call)
        done.append(call["item"])
    else:
        raise RuntimeError(f"the agent needs too many turns for {order!r}")
    await steps.run(write_letter, order)
    return done


@task.workflow
def sorted_parts(steps: Steps, order: str) -> int:
    """Send several parts, each of them once, and a letter.

    The parts are sorted after the duplicates were removed, so each process has the same order. They
    are sent in parallel with `steps.map`. If one of them fails, the workflow fails, and the engine
    takes all parts back that may have been sent.
    """
    sent = steps.map(send_part, sorted({"wiki", "build", "vpn"}), order=order)
    steps.run(write_letter, order)
    return len(sent)


@task.task
def prepare(order: str) -> str:
    return order


prepare.revert(refund)


@task.task(idempotent=True, retries=3, backoff=0.01, retry_on=ConnectionError)
def pay_out(order: str, key: str) -> str:
    return BANK.effect(f"charge {order}", idempotency_key=key)


@task.workflow
def undo_before_retries(steps: Steps, order: str) -> str:
    """Pay out a prize, with retries because the bank is often slow, and send a letter.

    A `revert` of `pay_out` that handles failures would run before each retry, and the bank does not
    execute a key again after it was taken back. So the retries use one key without a `revert`, and
    the step before them, which has no effect itself, takes the prize back if the workflow fails.
    """
    key = str(steps.uuid4())
    steps.run(prepare, order)
    payment = steps.run(pay_out, order, key)
    steps.run(write_letter, order)
    return payment


@task.workflow
def poll_with_deadline(steps: Steps, order: str) -> None:
    """Start a shipment, poll it until it is complete, and add it to an index.

    The workflow sleeps with `steps.sleep` between two polls and gives up at a time that follows
    from `steps.now()`. If it gives up, fails or is cancelled, the engine cancels the shipment. A
    poll changes nothing, so it is retried.
    """
    steps.run(ship, order)
    end = steps.now() + dt.timedelta(seconds=600)
    polls = 1
    while not steps.run(is_shipped, order, polls):
        if steps.now() > end:
            raise TimeoutError(f"{order} is not complete")
        polls += 1
        steps.sleep(0.01)
    steps.run(add_to_index, order)


_SLOW: Any = (ConnectionError,)

RIGHT: Mapping[str, Program] = {
    "order_with_keys": Program(
        flow_of(ship, charge, write_letter), exceptions={"charge": (Declined, ConnectionError)}
    ),
    "at_most_once": Program(flow_of(TransferOnce, ship)),
    "undone_by_later_step": Program(flow_of(ship, charge, unpack)),
    "decider_on_result": Program(decider_on_result),
    "key_of_each_try": Program(
        key_of_each_try, exceptions={"charge_with_key": _SLOW, "ship_with_key": _SLOW}
    ),
    "network_before_server": Program(
        network_before_server, exceptions={"create a": _SLOW, "create b": _SLOW}
    ),
    "rows_then_cursor": Program(rows_then_cursor, exceptions={"write": _SLOW}),
    "key_of_detached_task": Program(flow_of(StartJob, charge_with_key)),
    "card_after_card": Program(card_after_card, exceptions={"charge_with_key": (Declined,)}),
    "hold_with_timeout": Program(hold_with_timeout, signals=APPROVED),
    "time_of_steps": Program(time_of_steps),
    "trip_in_parallel": Program(trip_in_parallel, exceptions={"send_part": (LookupError,)}),
    "agent_with_call_ids": Program(agent_with_call_ids, exceptions={"ask_model": _SLOW}),
    "sorted_parts": Program(sorted_parts, exceptions={"send_part": _SLOW}),
    "undo_before_retries": Program(undo_before_retries, exceptions={"pay_out": _SLOW}),
    "poll_with_deadline": Program(poll_with_deadline, exceptions={"is_shipped": _SLOW}),
}
