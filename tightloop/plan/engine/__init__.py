"""Scheduling: readiness, failure handling, compensation and revisions of a plan graph."""
