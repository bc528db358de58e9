"""Judges findings that rules alone cannot decide."""
