"""Rules about commands."""
