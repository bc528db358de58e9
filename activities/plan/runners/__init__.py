"""Step runners, one module per capability, and their helpers."""
