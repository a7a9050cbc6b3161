"""The releases that `tools/_requirements.txt` pins, and results of the search for advisories.

The module uses only the standard library.
"""

import json
import os
import re

PINS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "_requirements.txt")

#: A pinned release: `name==version ; marker \\`. Its hashes are on the following lines.
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\]+?))? \\$")
#: Names of errors that mean that a service is not reachable.
_UNREACHABLE = re.compile(r"\b(?:ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError)\b")

PASSED, SKIPPED, FAILED = "passed", "SKIPPED", "FAILED"
#: Exit code for an unreachable service.
UNAVAILABLE = 69


def pins(text):
    """Return (name, version, marker or None, number of hashes) of each pinned release.

    :raises ValueError: if `tools/supply pin` cannot have written a line.
    """
    rows = []
    for line in text.splitlines():
        if match := _PIN.match(line):
            rows.append([*match.groups(), 0])
        elif re.match(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?$", line) and rows:
            rows[-1][-1] += 1
        elif line and not line.startswith("#"):
            raise ValueError(f"not a pin, and no hash: {line!r}")
    return [tuple(pin) for pin in rows]


def verdict(report, errors):
    """Return the verdict about a JSON report of pip-audit or its errors, and the reason.

    The verdict is PASSED only if each release was looked up and has no known advisory. If no
    release was looked up, the verdict is SKIPPED, whatever the exit code of pip-audit.
    """
    try:
        releases = json.loads(report)["dependencies"]
    except (ValueError, LookupError, TypeError):
        last = (errors.strip().splitlines() or ["nothing was reported"])[-1][:200]
        return (SKIPPED if _UNREACHABLE.search(errors) else FAILED), last
    bad = [
        f"{release['name']} {release['version']}: {advisory['id']}"
        + (
            f", fixed in {', '.join(advisory['fix_versions'])}"
            if advisory.get("fix_versions")
            else ""
        )
        for release in releases
        for advisory in release.get("vulns", ())
    ]
    left_out = [release["name"] for release in releases if "skip_reason" in release]
    if bad:
        return FAILED, "; ".join(bad)
    if len(left_out) == len(releases):
        return SKIPPED, f"the lookup failed for all {len(releases)} releases"
    if left_out:
        return FAILED, f"the lookup failed for: {', '.join(left_out)}"
    return PASSED, f"no known advisory for {len(releases)} releases"
