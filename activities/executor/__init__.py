"""Handing plans to executors and supervising their work."""
