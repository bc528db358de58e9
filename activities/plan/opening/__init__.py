"""From the text of a plan to a stored revision."""
