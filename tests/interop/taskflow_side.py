"""A process that imports TaskFlow and forks workers and engines (`python -m` this module).

Each input line is an order; the output line contains the process id.
"""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
from typing import Any

os.environ["WBENGINE_TEST_SIDE"] = "taskflow"

from kombu.utils import json as kombu_json
from taskflow.engines.worker_based import worker

from tests.interop import flows

TASKS = ["tests.interop.tasks"]


def work(order: dict[str, Any]) -> None:
    """Run a worker until it is killed."""
    running_worker = worker.Worker(
        order["exchange"], order["topic"], TASKS, threads_count=order["threads"],
        url=order["url"], retry_options=order.get("retry_options"),
    )  # fmt: skip
    running_worker.run(display_banner=False)


def run(order: dict[str, Any]) -> None:
    """Run a flow and write its result to a file."""
    options = order["options"]
    done = flows.Run(
        order["flow"], kombu_json.loads(order["store"]), order["made"], url=order["url"], **options
    ).go()
    with open(order["into"] + ".part", "w", encoding="utf-8") as file:
        file.write(kombu_json.dumps(done.told()))
    os.rename(order["into"] + ".part", order["into"])


def main() -> None:
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # forked processes need no wait
    print("ready", flush=True)
    for line in sys.stdin:
        order = json.loads(line)
        pid = os.fork()
        if pid:
            print(pid, flush=True)
            continue
        code = 1
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        try:
            log = os.open(order["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            logging.basicConfig(level="WARNING")
            logging.getLogger("taskflow.engines.worker_based.types").setLevel("INFO")
            {"work": work, "run": run}[order["do"]](order)
            code = 0
        except BaseException:
            logging.exception("it ended")
        finally:
            os._exit(code)


if __name__ == "__main__":
    main()
