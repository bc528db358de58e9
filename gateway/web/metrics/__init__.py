"""The page of metrics."""
