"""Complete programs built with wbengine, to run and to read."""
