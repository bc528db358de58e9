"""Opens and revises plans, and runs and compensates their steps."""
