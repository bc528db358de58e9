"""Copies of checkpoints in a remote store."""
