"""Queryable projection of episodes, plans and loops, and their alerts.

Workflow histories and workspaces remain the source of truth.
"""
