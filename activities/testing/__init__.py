"""Judging tests: a test counts when it has proved that it can fail."""
