"""The database of the ledger: SQLite by default, PostgreSQL where the settings say so."""
