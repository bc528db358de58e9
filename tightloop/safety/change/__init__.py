"""Rules for a completed change."""
