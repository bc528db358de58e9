"""Execution of a single attempt of a step."""
