"""The episode workflow."""
