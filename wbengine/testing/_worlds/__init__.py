"""Simulated systems outside of wbengine."""
