"""Rules that are applied to code before it runs."""
