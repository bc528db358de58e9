"""Entries by somebody who had not seen the rules; read after their first figures."""
