"""Handing plans to the chat in an editor window."""
