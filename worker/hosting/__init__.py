"""Workers on their host: what they may take, what they need at their start, and who else is there."""
