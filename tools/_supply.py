"""What tests run with: the releases that `tools/_requirements.txt` pins, and what is known of them.

Standard library only.
"""

import json
import os
import re

PINS = os.path.join(os.path.dirname(os.path.realpath(__file__)), "_requirements.txt")

#: A release that is pinned: `name==version ; marker \\`, and hashes on the lines that follow.
_PIN = re.compile(r"^([\w.-]+)==([^\s;\\]+)(?: ; ([^\\]+?))? \\$")
#: What the errors of a service that was not reached are called.
_UNREACHED = re.compile(r"\b(?:ConnectionError|ConnectTimeout|ReadTimeout|ProxyError|SSLError)\b")

PASSED, SKIPPED, FAILED = "passed", "SKIPPED", "FAILED"
#: The exit code that says: what this takes cannot be reached.
UNAVAILABLE = 69


def pins(text):
    """(name, version, marker or None, number of hashes) of each release that is pinned.

    :raises ValueError: a line is none of a file that `tools/supply pin` wrote.
    """
    found = []
    for line in text.splitlines():
        if match := _PIN.match(line):
            found.append([*match.groups(), 0])
        elif re.match(r"    --hash=sha256:[0-9a-f]{64}(?: \\)?$", line) and found:
            found[-1][-1] += 1
        elif line and not line.startswith("#"):
            raise ValueError(f"not a pin, and no hash: {line!r}")
    return [tuple(pin) for pin in found]


def verdict(report, errors):
    """What pip-audit's report in JSON, or its errors, come to: the verdict, and why.

    It has passed only if each release was looked up and nothing is known of it; a service that
    knows none of them was not asked, whatever its exit code says.
    """
    try:
        found = json.loads(report)["dependencies"]
    except (ValueError, LookupError, TypeError):
        last = (errors.strip().splitlines() or ["nothing was reported"])[-1][:200]
        return (SKIPPED if _UNREACHED.search(errors) else FAILED), last
    bad = [
        f"{one['name']} {one['version']}: {known['id']}"
        + (f", fixed in {', '.join(known['fix_versions'])}" if known.get("fix_versions") else "")
        for one in found
        for known in one.get("vulns", ())
    ]
    left_out = [one["name"] for one in found if "skip_reason" in one]
    if bad:
        return FAILED, "; ".join(bad)
    if len(left_out) == len(found):
        return SKIPPED, f"none of {len(found)} releases could be looked up"
    if left_out:
        return FAILED, f"could not be looked up: {', '.join(left_out)}"
    return PASSED, f"nothing is known of {len(found)} releases"
