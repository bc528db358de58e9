"""Measuring progress: change size, probability class, and repeated failures."""
