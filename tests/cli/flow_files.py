"""Flows in files, as the command line is given them."""

from __future__ import annotations

ORDER = "tests.cli.shop:order"


SLOW = "tests.cli.shop:slow"
