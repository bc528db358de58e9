"""The migrations of the database, run within a transaction of the caller."""

from pathlib import Path

from sqlalchemy import Connection, text

FOLDER = Path(__file__).with_name("migrations")
HEAD = max(path.stem for path in FOLDER.glob("versions/v*.py"))
"""The newest revision."""
_SQLITE_TABLE = "SELECT name FROM sqlite_master WHERE name = 'alembic_version'"


def revision_of(connection: Connection) -> str:
    """Return the revision that a database is at; empty: it is new."""
    # Asked in every transaction: SQLAlchemy's own way to ask is slower than what the transaction is for.
    postgresql = connection.dialect.name == "postgresql"
    known = "SELECT to_regclass('alembic_version')" if postgresql else _SQLITE_TABLE
    if connection.execute(text(known)).scalar() is None:
        return ""
    return str(connection.execute(text("SELECT version_num FROM alembic_version")).scalar() or "")


def upgrade(connection: Connection) -> None:
    """Bring the database of a connection to the newest revision; the caller commits."""
    # Most processes find it up to date, and do without 0.2 s of imports.
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
