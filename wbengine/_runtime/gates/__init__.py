"""Gates: reasons for which ready work waits before an executor receives it."""
