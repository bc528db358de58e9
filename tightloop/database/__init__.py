"""The ledger's database, which is SQLite by default, or PostgreSQL if configured."""
