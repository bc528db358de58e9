"""Deterministic Temporal workflows. Decisions are pure functions in `tightloop`; work is done by activities."""
