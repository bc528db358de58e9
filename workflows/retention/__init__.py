"""Retention: one collection on one host."""
