"""Runs a single attempt of a step."""
