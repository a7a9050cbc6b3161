"""Implementation of `tools/mutate`: selection of mutants, test runs and results."""
