"""What is kept: Temporal's lists and histories, and what episodes and plans stored on this host."""
