"""Implementation of `tools/bench`: measurements, targets and reports."""
