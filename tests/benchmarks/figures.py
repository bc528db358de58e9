"""Figures and how they are shown: every one with its median and its spread, as a ratio wherever two things compare."""

import statistics
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Self


@dataclass(frozen=True)
class Spread:
    """The median of samples with the 10th, 90th and 95th percentile."""

    median: float
    low: float
    high: float
    p95: float
    samples: int

    @classmethod
    def of(cls, samples: Iterable[float]) -> Self:
        """Sum up at least one sample."""
        known = sorted(samples)
        cuts = statistics.quantiles(known, n=20, method="inclusive") if len(known) > 1 else known * 19
        return cls(statistics.median(known), cuts[1], cuts[17], cuts[18], len(known))

    @classmethod
    def of_ratios(cls, above: Sequence[float], below: Sequence[float]) -> Self:
        """Sum up the ratios of samples that were taken in pairs."""
        return cls.of(a / b for a, b in zip(above, below, strict=True))

    def __str__(self) -> str:
        return f"{_number(self.median)} ({_number(self.low)} to {_number(self.high)})"


@dataclass
class Report:
    """What one benchmark found: a table for people and the figures for programs."""

    title: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    figures: dict[str, Any] = field(default_factory=dict)

    def add(self, name: str, *cells: object, aim: str = "") -> None:
        """Add a row; the cells are its figures."""
        shown = [_number(cell) if isinstance(cell, float) else str(cell) for cell in cells]
        width = len(self.columns) - 2
        self.rows.append((name, *shown, *[""] * (width - len(shown)), aim))
        values = [cell.__dict__ if isinstance(cell, Spread) else cell for cell in cells]
        self.figures[name] = values[0] if len(values) == 1 else dict(zip(self.columns[1:], values, strict=False))

    def text(self) -> str:
        """Return the table."""
        lines = [self.columns, *self.rows]
        widths = [max(len(line[n]) for line in lines) for n in range(len(self.columns))]
        body = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines]
        rule = "-" * len(body[0])
        parts = ["", self.title, rule, body[0], rule, *body[1:], rule, *self.notes]
        return "\n".join(part.rstrip() for part in parts)


def progress(text: str) -> None:
    """Tell who waits what is going on; not part of the figures."""
    print(f"  {text}", file=sys.stderr, flush=True)


def _number(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 1_000 else f"{value:.3g}"
