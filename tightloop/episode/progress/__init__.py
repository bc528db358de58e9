"""Measuring progress: what an iteration changed, its class, and repeated failures."""
