"""Independent tasks run at the same time, and what needs them all waits for them all.

Primes are counted in four ranges.  The members of the inner, unordered flow may run in any order
and together; the outer flow is linear, so the sum is built when all four are there.  On `--engine
processes` four cores count.

Prints::

    below 5,000: 669
    below 10,000: 560
    below 15,000: 525
    below 20,000: 508
    together: 2262
"""

from __future__ import annotations

from wbengine import engines, task
from wbengine.examples import _kinds
from wbengine.patterns import linear_flow, unordered_flow

STEP = 5_000
ENDS = [5_000, 10_000, 15_000, 20_000]


class CountPrimes(task.Task):
    def execute(self, first: int, end: int) -> int:
        return sum(is_prime(number) for number in range(first, end))


def is_prime(number: int) -> bool:
    return number > 1 and all(number % divisor for divisor in range(2, int(number**0.5) + 1))


class Add(task.Task):
    default_provides = "together"

    def execute(self, **counts: int) -> int:
        return sum(counts.values())


def main() -> None:
    names = [f"below {end:,}" for end in ENDS]
    ranges = unordered_flow.Flow("ranges")
    for name, end in zip(names, ENDS, strict=True):
        ranges.add(
            CountPrimes(f"count {name}", provides=name, inject={"first": end - STEP, "end": end})
        )
    # The names are known only here: `requires` adds them to what the signature of Add tells.
    flow = linear_flow.Flow("primes").add(ranges, Add(requires=names))
    with _kinds.chosen(__doc__) as options:
        values = engines.run(flow, **options)
    for name in [*names, "together"]:
        print(f"{name}: {values[name]}")


if __name__ == "__main__":
    main()
