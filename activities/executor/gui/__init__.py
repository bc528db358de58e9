"""Hands plans over to an editor's chat through its window, and brings the agent's answer back."""
