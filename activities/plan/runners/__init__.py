"""One module for each capability, and what only they need."""
