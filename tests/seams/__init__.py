"""Adapters between the black-box suites and the inside of the package, one for each part of it.

The oracle, the simulated worlds, the contract suites and the tools reach a part through its adapter
only, and otherwise use the public API.  An adapter speaks in words of the domain: whoever rebuilds
a part changes one file here.
"""
