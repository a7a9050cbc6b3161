"""Flows that fail for some inputs."""

from wbengine import task
from wbengine.patterns import linear_flow


@task.task(name="quote", provides="price")
def quote(order: int) -> int:
    return order * 10


@task.task(name="pay", provides="paid")
def pay(price: int, card: str) -> str:
    if card == "bad":
        raise ValueError("card declined")
    return f"{card} {price}"


def purchase() -> linear_flow.Flow:
    return linear_flow.Flow("purchase").add(quote(), pay())


@task.task
def note() -> None:
    pass


def long_purchase() -> linear_flow.Flow:
    notes = [note(name=f"note {number}") for number in range(120)]
    return linear_flow.Flow("long purchase").add(*notes, quote(), pay())
