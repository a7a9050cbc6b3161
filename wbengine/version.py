"""The version of this package, with the functions of TaskFlow."""

from __future__ import annotations

from typing import Final

import wbengine

#: Vendor and product.
TASK_VENDOR: Final = "The wbengine developers"
TASK_PRODUCT: Final = "wbengine"
#: Suffix of a distribution's version; None: not packaged by a distribution.
TASK_PACKAGE: str | None = None


def version_string() -> str:
    """Return the version, such as `1.2.3`."""
    return wbengine.__version__


def version_string_with_package() -> str:
    """Return the version with the suffix of the distribution, if there is one."""
    return version_string() if TASK_PACKAGE is None else f"{version_string()}-{TASK_PACKAGE}"
