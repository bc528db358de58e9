"""The plan workflow."""
