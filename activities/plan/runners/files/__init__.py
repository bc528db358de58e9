"""File edits and patches."""
