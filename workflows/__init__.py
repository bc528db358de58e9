"""Deterministic Temporal workflows. Pure functions in `tightloop` make the decisions, and activities do the work."""
