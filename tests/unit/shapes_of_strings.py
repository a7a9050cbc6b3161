"""Classes whose annotations are strings."""

from __future__ import annotations

import dataclasses
import decimal
from typing import TYPE_CHECKING, Annotated, NotRequired, TypedDict

if TYPE_CHECKING:
    from tests.unit.test_shapes import Order


class Settings(TypedDict):
    name: str
    limit: Annotated[NotRequired[decimal.Decimal], "cost"]


@dataclasses.dataclass
class Unknown:
    order: Order
