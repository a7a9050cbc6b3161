"""Helpers for programs written for TaskFlow, as `wbengine.utils` with TaskFlow's names."""
