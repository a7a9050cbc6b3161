"""Credit window: the number of messages that may still be requested."""

from __future__ import annotations

import itertools
import random

import pytest

from wbengine.transports._broker import CreditWindow, Delivery


def message(number: int) -> Delivery:
    delivery = Delivery("q", None, b"", False)
    delivery.delivery_tag = number
    return delivery


@pytest.mark.parametrize("seed", range(50))
def test_limit_and_notifications_hold_in_random_histories(seed: int) -> None:
    """The number of held messages never exceeds the limit, and a thread that found no capacity is
    notified when there is some.
    """
    chance = random.Random(seed)
    told: list[bool] = []
    room = CreditWindow(lambda: told.append(True))
    room.limit = chance.randint(1, 5)
    numbers = itertools.count()
    held: set[Delivery] = set()
    released: set[Delivery] = set()
    orders: list[int] = []
    asked, starved = 0, False

    def give(count: int) -> None:
        new = [message(number) for number in itertools.islice(numbers, count)]
        room.unsettled.update(dict.fromkeys(new))
        held.update(new)

    def some() -> set[Delivery]:
        ordered = sorted(held, key=lambda each: each.delivery_tag)
        return set(chance.sample(ordered, chance.randint(1, len(held))))

    for _ in range(300):
        free = room.limit - len(held - released) - asked - sum(orders)
        assert free >= 0
        told.clear()
        step = chance.choice(["ask", "look", "answer", "order", "deliver", "release", "settle"])
        if step == "ask" and not asked:
            asked = room.reserve(chance.choice([1, 64]), 0)
            assert (asked > 0) == (free > 0) and asked <= free
            starved = not asked
        elif step == "look" and not asked:
            assert room.has_capacity(0) == (free > 0)
            starved = not free
        elif step == "answer" and asked:
            give(chance.randint(0, asked))
            asked = 0
            room.requested = 0
        elif step == "order":
            most = room.reserve_for_order(64, 0)
            assert most == (free if starved else 0), "else the other one asks"
            orders += [most] if most else []
        elif step == "deliver" and orders:
            most = orders.pop(chance.randrange(len(orders)))
            came = chance.randint(0, most)
            give(came)
            room.release_order(most, came)
            assert bool(told) == (starved and came < most)
            starved = starved and came == most
        elif step == "release" and held:
            room.release(gone := some())
            released |= gone
            room.notify_capacity()
            assert bool(told) == starved
            starved = False
        elif step == "settle" and held:
            counted = (gone := some()) - released
            assert len(room.settle([*gone, message(10**6)])) == len(gone)
            assert bool(told) == (starved and bool(counted))
            starved = starved and not counted
            held -= gone
            released -= gone


def test_ready_messages_count_against_the_limit() -> None:
    room = CreditWindow(lambda: None)
    room.limit = 4
    assert not room.has_capacity(4)
    assert room.reserve_for_order(64, ready=3) == 1
    assert not room.has_capacity(3)
    assert room.reserve_for_order(64, ready=3) == 0
