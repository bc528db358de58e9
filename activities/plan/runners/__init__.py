"""Step runners, with one module per capability, and their helpers."""
