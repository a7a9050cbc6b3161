"""Adapters between the black-box suites and the internals of the package, one for each part.

The oracle, the simulations, the contract suites and the tools use a part only through its adapter,
and otherwise the public API. The adapters use terms of the domain, so a change of the internals
affects one file here.
"""
