"""A result is returned as soon as it is available, while the flow continues.

A shop confirms an order when it is paid, and packs it afterwards. The engine runs in a separate
thread; a callback on the atom notifier returns the single result.

Prints::

    confirmed: order 7, paid 30
    the flow is still at work: True
    in the end: SUCCESS, parcel for order 7
"""

from __future__ import annotations

import threading
from concurrent import futures
from typing import Any

from examples import kinds
from wbengine import engines, task
from wbengine.patterns import linear_flow

CONFIRMED = threading.Event()


class Pay(task.Task):
    default_provides = "receipt"

    def execute(self, order: int, price: int) -> str:
        return f"order {order}, paid {price}"


class Pack(task.Task):
    default_provides = "parcel"

    def execute(self, order: int) -> str:
        CONFIRMED.wait()  # represents long work: it lasts at least until the confirmation
        return f"parcel for order {order}"


def main() -> None:
    with kinds.chosen(__doc__, (kinds.SERIAL, kinds.THREADS, kinds.WORKERS)) as options:
        flow = linear_flow.Flow("order").add(Pay("pay"), Pack("pack"))
        engine = engines.load(flow, inputs={"order": 7, "price": 30}, **options)
        reply: futures.Future[str] = futures.Future()

        def paid(state: str, details: dict[str, Any]) -> None:
            if details["task_name"] == "pay":
                reply.set_result(details["result"])

        engine.atom_notifier.register("SUCCESS", paid)
        with futures.ThreadPoolExecutor(1) as background:
            running = background.submit(engine.run)
            print("confirmed:", reply.result())
            print("the flow is still at work:", not running.done())
            CONFIRMED.set()
            running.result()  # raises the exception of a failed flow
    print(f"in the end: {engine.storage.get_flow_state()}, {engine.storage.fetch('parcel')}")


if __name__ == "__main__":
    main()
