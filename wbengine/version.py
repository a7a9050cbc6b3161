"""The version of this package, with the functions of TaskFlow."""

from __future__ import annotations

from typing import Final

import wbengine

TASK_VENDOR: Final = "The wbengine developers"
TASK_PRODUCT: Final = "wbengine"
#: Suffix of the version that a distribution built. None: not built by a distribution.
TASK_PACKAGE: str | None = None


def version_string() -> str:
    return wbengine.__version__


def version_string_with_package() -> str:
    """Return the version with the suffix of the distribution, if any."""
    return version_string() if TASK_PACKAGE is None else f"{version_string()}-{TASK_PACKAGE}"
