"""Retention on this host: what is freed, when, and how full the disk may get."""
