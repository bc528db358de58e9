"""Rules about a change, after the work."""
