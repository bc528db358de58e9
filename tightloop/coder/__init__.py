"""The built-in coder: prompts, models and rules."""
