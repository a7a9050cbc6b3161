"""Events: what workers tell of themselves and of their tasks, and who hears it."""
