"""Checks of brokers, ledgers, stores, workers and packages, with advice on how to fix problems.

`examining.examine` runs all checks and yields findings. Each other module checks one subject.
"""
