"""What holds for all tests."""

from __future__ import annotations

import os
import signal

from hypothesis import settings

# Speed is not what properties are about; the machine may be busy.
settings.register_profile("local", deadline=None)
# A change must not fail because of luck; new examples are found on people's machines.
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")

# A shell that runs a script's command in the background has it ignore Ctrl-C, and with it all that
# the tests start.
signal.signal(signal.SIGINT, signal.default_int_handler)
