"""Episodes that do honest work: none of them may be paused."""
