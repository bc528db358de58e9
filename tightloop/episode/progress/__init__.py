"""Measurement of progress: change size, probability class, and repeated failures."""
