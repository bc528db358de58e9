"""Checkpoints, diffs, the probability class and the ledger."""
