"""The ledger: the queryable projection of episodes, plans and loops, and the alerts about them.

Histories and workspaces are the truth.
"""
