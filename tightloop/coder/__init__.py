"""The built-in coder: its words and its rules."""
