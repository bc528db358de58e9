"""Scheduling of a plan graph: readiness, failure handling, compensation and revisions."""
