"""The contract between episodes and executors."""
