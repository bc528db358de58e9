"""Traces and metrics of a worker."""
