"""The flows that a conductor may run, by the version of its code."""

from __future__ import annotations

import contextlib
import threading
from typing import Final

from wbengine._introspection import object_names
from wbengine.engines import _flow_factories
from wbengine.persistence import _codes, base, models

__all__ = ["CodeVersions"]


class CodeVersions:
    """Decides by the stored order of versions which flows this process runs. Thread-safe.

    Flows without a version, of other apps, and of this or an earlier version are accepted. A
    process without a `version` accepts all flows.

    :param app: name of the application; default: for each flow, the top-level package of its
        factory.
    :param is_exact: accept only flows without a version or of this version.
    :raises ValueError: if a name is invalid.
    """

    REPORT_SECONDS: Final = 30.0

    def __init__(
        self,
        persistence: base.Backend,
        version: str | None = None,
        app: str | None = None,
        *,
        is_exact: bool = False,
    ) -> None:
        self.version = None if version is None else object_names.check_code("code_version", version)
        self._app = None if app is None else object_names.check_code("app", app)
        if version is None and (app is not None or is_exact):
            raise ValueError("app and the policy 'exact' require code_version")
        self._persistence = persistence
        self._is_exact = is_exact
        self._lock = threading.Lock()
        self._codes: dict[str, _codes.Code] = {}
        #: Known codes whose flows are not accepted.
        self.refused: tuple[str, ...] = ()

    def register(self) -> None:
        """Add the version to the stored order, and report that a process has it.

        Without an `app`, this applies to all apps in the store, and to others from their first
        flow on.
        """
        with self._lock, contextlib.closing(self._persistence.get_connection()) as connection:
            if self.version is None:
                connection.add_codes("", [""])
            elif self._app is not None:
                connection.add_codes(self.version, [self._app])
            else:
                apps = {code.app for code in connection.codes()}
                connection.add_codes(self.version, sorted({"", *apps}))
            self._read(connection)

    def report(self) -> None:
        """Report that a process has this version, unless one did so a short time ago."""
        version = self.version or ""
        with contextlib.closing(self._persistence.get_connection()) as connection:
            ages = [code.age for code in connection.codes() if code.version == version]
            if max(ages, default=0.0) >= self.REPORT_SECONDS:
                connection.report_code(version)

    def withdraw(self) -> None:
        """Report that this process ends. Others with this version report again in their turn."""
        with contextlib.closing(self._persistence.get_connection()) as connection:
            connection.withdraw_code(self.version or "")

    def accepts(self, detail: models.FlowDetail) -> bool:
        """Return whether this process may run the flow. Reads the store for unknown codes."""
        text = detail.code
        if self.version is None or text is None:
            return True
        with self._lock:
            if text not in self._codes:
                with contextlib.closing(self._persistence.get_connection()) as connection:
                    self._read(connection)
            return text not in self.refused

    def code_of(self, detail: models.FlowDetail) -> str | None:
        """Return the code of this process for a flow, and store it if it is new."""
        if self.version is None:
            return None
        app = self._app or _flow_factories.package_of(detail.meta_value(models.FACTORY))
        text = f"{app}:{self.version}"
        with self._lock:
            if text not in self._codes:
                with contextlib.closing(self._persistence.get_connection()) as connection:
                    # Other versions may have appeared before the first flow of the app.
                    known = () if self._app else connection.codes()
                    earlier = [code.version for code in known if code.version and not code.app]
                    connection.add_codes(self.version, [app], earlier)
                    self._read(connection)
        return text

    def _read(self, connection: base.Connection) -> None:
        self._codes = {code.text: code for code in connection.codes()}
        self.refused = tuple(
            text for text, code in self._codes.items() if not self._accepts_code(code)
        )

    def _accepts_code(self, code: _codes.Code) -> bool:
        own = self._codes.get(f"{code.app}:{self.version}")
        if own is None:  # It is the latest version as soon as it is stored.
            return not self._is_exact or self._app not in (None, code.app)
        return code.number == own.number if self._is_exact else code.number <= own.number
