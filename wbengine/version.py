"""The version of this package, for programs that ask for it as they ask TaskFlow."""

from __future__ import annotations

from typing import Final

import wbengine

#: Who makes it, and what it is called.
TASK_VENDOR: Final = "The wbengine developers"
TASK_PRODUCT: Final = "wbengine"
#: A distribution's suffix of the version; None: this is no distribution's package.
TASK_PACKAGE: str | None = None


def version_string() -> str:
    """The version, such as `1.2.3`."""
    return wbengine.__version__


def version_string_with_package() -> str:
    """The version with the distribution's suffix, if there is one."""
    return version_string() if TASK_PACKAGE is None else f"{version_string()}-{TASK_PACKAGE}"
