"""Learning from an iteration that went off its course."""
