"""Content-addressed bytes on the workspace's host."""
