"""Tests with OpenStack TaskFlow in separate processes."""
