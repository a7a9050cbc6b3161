"""Connections to brokers: publish, consume, acknowledge, reconnect."""
