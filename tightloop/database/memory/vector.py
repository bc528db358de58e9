"""Vectors in a column: pgvector's type on PostgreSQL, float32 in a blob on SQLite."""

from array import array
from typing import Any

from sqlalchemy import Dialect, LargeBinary
from sqlalchemy.types import TypeDecorator, TypeEngine, UserDefinedType


class PostgresVector(UserDefinedType[str]):
    """The type `vector` of pgvector."""

    cache_ok = True

    def __init__(self, dimension: int | None = None) -> None:
        """Take the dimension; None: any."""
        self.dimension = dimension

    def get_col_spec(self, **_: Any) -> str:
        """Return the name of the type."""
        return f"vector({self.dimension})" if self.dimension else "vector"


class Embedding(TypeDecorator["array[float]"]):
    """A vector of any dimension."""

    impl = LargeBinary
    cache_ok = True

    def load_dialect_impl(self, dialect: Dialect) -> TypeEngine[Any]:
        """Return the type of the database."""
        return dialect.type_descriptor(PostgresVector() if dialect.name == "postgresql" else LargeBinary())

    def process_bind_param(self, value: "array[float] | None", dialect: Dialect) -> str | bytes | None:
        """Return a vector as the database takes it."""
        if value is None:
            return None
        return as_text(value) if dialect.name == "postgresql" else value.tobytes()

    def process_result_value(self, value: Any, dialect: Dialect) -> "array[float] | None":
        """Return a vector as it was given."""
        if value is None:
            return None
        if dialect.name == "postgresql":
            return array("f", map(float, str(value).strip("[]").split(",")))
        found = array("f")
        found.frombytes(value)
        return found


def as_text(vector: "array[float]") -> str:
    """Return a vector as pgvector writes it."""
    return "[" + ",".join(map(repr, vector)) + "]"
