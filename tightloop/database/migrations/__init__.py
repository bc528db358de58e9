"""Alembic migrations of the ledger's database."""
