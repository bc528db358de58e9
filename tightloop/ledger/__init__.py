"""Queryable projection of episodes, plans and loops, including their alerts.

Workflow histories and workspaces remain the source of truth.
"""
