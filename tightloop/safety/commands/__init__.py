"""Rules for commands."""
