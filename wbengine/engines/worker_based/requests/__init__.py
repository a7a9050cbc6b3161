"""An engine's book of requests: from their submission to their one outcome, mostly without I/O."""
