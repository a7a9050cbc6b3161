"""TaskFlow's `types` that no flow needs; they are imported as `wbengine.types`."""
