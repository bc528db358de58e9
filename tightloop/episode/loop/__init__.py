"""The rules of the loop, from the state of an episode alone: what comes next, and what the state becomes.

Everything here is pure: `workflows/episode/workflow.py` asks these functions what comes next and does it.
"""
