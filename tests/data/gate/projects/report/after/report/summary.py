"""Summaries of tables in CSV."""

import csv
from collections import defaultdict


class ColumnError(KeyError):
    """A table does not have a column."""


def read(path, delimiter=","):
    """Return the rows of a file; empty ones are left out, and cells have no space around them."""
    with open(path, newline="") as file:
        rows = csv.DictReader(file, delimiter=delimiter)
        cleaned = [{name: (cell or "").strip() for name, cell in row.items()} for row in rows]
    return [row for row in cleaned if any(row.values())]


def totals(rows, by, value):
    """Return the sums of a column for each value of another one, largest first."""
    sums = defaultdict(float)
    for row in rows:
        if by not in row or value not in row:
            raise ColumnError(by if by not in row else value)
        sums[row[by]] += float(row[value] or 0)
    return dict(sorted(sums.items(), key=lambda pair: (-pair[1], pair[0])))


def share(part, whole):
    """Return a share as people read it."""
    if whole == 0:
        return "n/a"
    percent = 100 * part / whole
    return "<1 %" if 0 < percent < 1 else f"{percent:.0f} %"
