"""Hand-off of plans to an editor's chat through its window."""
