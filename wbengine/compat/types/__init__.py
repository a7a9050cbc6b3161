"""TaskFlow's `types` that flows do not need; they are imported as `wbengine.types`."""
