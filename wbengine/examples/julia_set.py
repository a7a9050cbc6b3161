"""A picture, computed row by row on two worker processes.

Each row is a task.  The rows are independent, so they are spread over all the slots there are.
Complex numbers travel as they are.

Prints::

                    .............:@:....
            ....@:............:::-*@@@.....
          ....::@@@--@@@*--::-%@@@@@-:.......
         ..:%@@@@*@@@@@@@@@@@+@@@@@%::........
         ......::::+@@@@@@@@@@@@@+=--:-:........
           ........:@@--@---=*@@@@@@@@@%=-@@=.....
             ...........:::-=@@@@@@@@@@@@@@+@:......
                 .........:-=@@@@@@@@@@@@@@=-:.........
                    ......:@+@@@@@@@@@@@@@@=-:::...........
                      .....=@@-=%@@@@@@@@@*=---@--@@:........
                        ........:-:--=+@@@@@@@@@@@@@+::::......
                          ........::%@@@@@+@@@@@@@@@@@*@@@@%:..
                           .......:-@@@@@%-::--*@@@--@@@::....
                             .....@@@*-:::............:@....
                                ....:@:.............
"""

from __future__ import annotations

import tempfile

from wbengine import engines
from wbengine.examples import own_worker, remote_tasks
from wbengine.patterns import unordered_flow

WIDTH, HEIGHT = 64, 15


def picture() -> unordered_flow.Flow:
    rows = unordered_flow.Flow("picture")
    for number in range(HEIGHT):
        imaginary = 1.05 - 2.1 * number / (HEIGHT - 1)
        where = {"imaginary": imaginary, "width": WIDTH, "seed": -0.123 + 0.745j}
        rows.add(remote_tasks.JuliaRow(f"row {number}", provides=f"row {number}", inject=where))
    return rows


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        url = f"filesystem://{folder}/broker"
        with own_worker.workers(url, count=2):
            values = engines.run(picture(), engine="worker-based", url=url)
    for number in range(HEIGHT):
        print(values[f"row {number}"])


if __name__ == "__main__":
    main()
