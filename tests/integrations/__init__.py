"""Tests of integrations, each with its framework."""
