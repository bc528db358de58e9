"""Bounds of the time that the listeners of this installation give whoever connects."""

HEAD_SECONDS = 10.0
"""For a whole request head, from the connection or from the first byte behind the request before."""
BODY_SECONDS = 30.0
"""For a whole body, behind its head."""
