"""How many messages more there is room for, whatever happens in whatever order."""

from __future__ import annotations

import itertools
import random

import pytest

from wbengine.transports.broker import CreditWindow, Taken

TAKEN = Taken("q", None, b"", False)


@pytest.mark.parametrize("seed", range(50))
def test_random_histories(seed: int) -> None:
    """The thread that drains, and others that order: never more than the limit is held, and who
    was told that there is no room hears when there is."""
    chance = random.Random(seed)
    told: list[bool] = []
    room = CreditWindow(lambda: told.append(True))
    room.limit = chance.randint(1, 5)
    numbers = itertools.count()
    held: set[int] = set()
    released: set[int] = set()
    orders: list[int] = []
    asked, starved = 0, False

    def give(count: int) -> None:
        new = dict.fromkeys(itertools.islice(numbers, count), TAKEN)
        room.held.update(new)
        held.update(new)

    def some() -> set[int]:
        return set(chance.sample(sorted(held), chance.randint(1, len(held))))

    for _ in range(300):
        free = room.limit - len(held - released) - asked - sum(orders)
        assert free >= 0
        told.clear()
        step = chance.choice(["ask", "look", "answer", "order", "deliver", "release", "settle"])
        if step == "ask" and not asked:
            asked = room.ask(chance.choice([1, 64]), 0)
            assert (asked > 0) == (free > 0) and asked <= free
            starved = not asked
        elif step == "look" and not asked:
            assert room.look(0) == (free > 0)
            starved = not free
        elif step == "answer" and asked:
            give(chance.randint(0, asked))
            asked = 0
            room.asked = 0
        elif step == "order":
            most = room.order(64, 0)
            assert most == (free if starved else 0), "else the other one asks"
            orders += [most] if most else []
        elif step == "deliver" and orders:
            most = orders.pop(chance.randrange(len(orders)))
            came = chance.randint(0, most)
            give(came)
            room.delivered(most, came)
            assert bool(told) == (starved and came < most)
            starved = starved and came == most
        elif step == "release" and held:
            room.release(gone := some())
            released |= gone
            room.made()
            assert bool(told) == starved
            starved = False
        elif step == "settle" and held:
            counted = (gone := some()) - released
            assert len(room.settle([*gone, 10**6])) == len(gone)
            assert bool(told) == (starved and bool(counted))
            starved = starved and not counted
            held -= gone
            released -= gone


def test_what_is_ready_needs_room_as_well() -> None:
    room = CreditWindow(lambda: None)
    room.limit = 4
    assert not room.look(4)
    assert room.order(64, ready=3) == 1
    assert not room.look(3)
    assert room.order(64, ready=3) == 0
