"""Whether a task queue has workers."""
