"""The migrations of a database, run within a transaction of the caller."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from sqlalchemy import Connection, MetaData, text

from tightloop.database.schema import METADATA

FOLDER = Path(__file__).with_name("migrations")


@dataclass(frozen=True)
class Migrations:
    """A set of tables, and how they came to be."""

    name: str
    """What the tables hold, for messages."""
    versions: Path
    """Folder of the migrations, `v<number>_<what>.py`."""
    table: str
    """Holds the revision that a database is at."""
    metadata: MetaData
    when_damaged: str
    """What helps, for messages."""

    @cached_property
    def head(self) -> str:
        """The newest revision."""
        return max(path.stem for path in self.versions.glob("v*.py"))

    def revision_of(self, connection: Connection) -> str:
        """Return the revision that a database is at; empty: it is new."""
        # Asked in every transaction: SQLAlchemy's own way to ask is slower than what the transaction is for.
        if connection.dialect.name == "postgresql":
            known = text("SELECT to_regclass(:name)")
        else:
            known = text("SELECT name FROM sqlite_master WHERE name = :name")
        if connection.execute(known, {"name": self.table}).scalar() is None:
            return ""
        return str(connection.execute(text(f"SELECT version_num FROM {self.table}")).scalar() or "")  # noqa: S608

    def upgrade(self, connection: Connection, to: str = "head") -> None:
        """Bring the database of a connection to a revision, the newest if none is named; the caller commits."""
        # Most processes find it up to date, and do without 0.2 s of imports.
        from alembic import command
        from alembic.config import Config

        config = Config()
        config.set_main_option("script_location", str(FOLDER).replace("%", "%%"))
        config.set_main_option("version_locations", str(self.versions).replace("%", "%%"))
        config.set_main_option("path_separator", "newline")
        config.attributes |= {"connection": connection, "metadata": self.metadata, "table": self.table}
        command.upgrade(config, to)


LEDGER = Migrations(
    name="ledger",
    versions=FOLDER / "versions",
    table="alembic_version",
    metadata=METADATA,
    when_damaged="Move it away, and restore it from a backup or make it again: tightloop ledger rebuild",
)
