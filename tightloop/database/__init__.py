"""Ledger database: SQLite by default, PostgreSQL if configured."""
