"""Rules for code, applied before it runs."""
