"""Tasks that exchange arrays and frames."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pandas.testing as tm
import polars as pl
import pyarrow as pa

from wbengine import task
from wbengine.patterns import linear_flow

FRAME = pd.DataFrame({"name": ["x", None], "day": pd.date_range("2020", periods=2, tz="UTC")})
ARRAY = np.array([1.5, np.nan])
TABLE = pa.table({"a": [1, None]})
POLARS = pl.DataFrame({"a": [[1], None]})


class Make(task.Task):
    default_provides = ("frame", "array", "table", "polars")

    def execute(self, start: pd.DataFrame) -> Any:
        tm.assert_frame_equal(start, FRAME)
        return start, ARRAY, TABLE, POLARS

    def revert(self, result: Any, start: pd.DataFrame) -> None:
        check(result)
        tm.assert_frame_equal(start, FRAME)


class Use(task.Task):
    default_provides = "used"

    def execute(self, frame: Any, array: Any, table: Any, polars: Any) -> Any:
        check((frame, array, table, polars))
        return {"frames": [frame], "array": array}


class Same(task.Task):
    def execute(self, value: Any) -> Any:
        return value


class Fail(task.Task):
    def execute(self, used: Any) -> None:
        raise ValueError("failed", used["array"])


def check(values: Any) -> None:
    """Check that values are those of `Make`."""
    frame, array, table, polars = values
    tm.assert_frame_equal(frame, FRAME)
    np.testing.assert_array_equal(array, ARRAY)
    assert table.equals(TABLE)
    assert polars.equals(POLARS)


def flow(*more: task.Task) -> linear_flow.Flow:
    return linear_flow.Flow("frames").add(Make("make"), Use("use"), *more)


@task.workflow
def publish(steps: Any, frame: pd.DataFrame) -> Any:
    steps.publish("frame", frame)
    check(steps.run(Make, frame))
    check(steps.map(Same, [FRAME, ARRAY, TABLE, POLARS]))
    return steps.wait_for("array"), frame
