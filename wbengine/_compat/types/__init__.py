"""TaskFlow's `types` that flows do not need, imported as `wbengine.types`."""
