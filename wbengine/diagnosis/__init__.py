"""What is wrong with brokers, ledgers, stores, workers and packages, and how to fix it.

`examining.examine` looks at all of it, and yields findings.  Each module knows one thing.
"""
