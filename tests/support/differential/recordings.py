"""Recordings in files: one line of JSON for each schedule, compressed."""

import lzma
from collections.abc import Iterable, Iterator
from pathlib import Path

from tests.support.differential.schedule import Recording

FOLDER = Path(__file__).parents[2] / "data" / "differential"


def read(folder: Path = FOLDER) -> Iterator[Recording]:
    """Return all recordings of a folder."""
    for path in sorted(folder.glob("*.jsonl.xz")):
        with lzma.open(path, "rt") as lines:
            for line in lines:
                yield Recording.model_validate_json(line)


def write(path: Path, recordings: Iterable[Recording]) -> None:
    """Write recordings."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with lzma.open(path, "wt", preset=9) as lines:
        for recording in recordings:
            lines.write(recording.model_dump_json(exclude_defaults=True) + "\n")
