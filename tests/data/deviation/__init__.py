"""Labelled iterations, and how they are split: the thresholds were chosen on one half, the other was held out."""

import hashlib
from pathlib import Path

import yaml

from tightloop.episode.progress.tracking import ProbabilityClass, Spending, TrackingFacts
from tightloop.value import Document, Value


class Case(Document):
    """One iteration as an operator sees it."""

    name: str
    facts: TrackingFacts
    label: ProbabilityClass
    why: str
    hard: bool = False
    """Sensible operators disagree."""


def cases() -> tuple[Case, ...]:
    """Return all cases in the order of the file. Facts that do not exist are refused."""
    text = (Path(__file__).parent / "cases.yaml").read_text(encoding="utf-8")
    found = []
    for entry in yaml.safe_load(text)["cases"]:
        _refuse_unknown(entry["name"], entry["facts"], TrackingFacts)
        _refuse_unknown(entry["name"], entry["facts"].get("since_progress", {}), Spending)
        label = entry.pop("class")
        found.append(Case.model_validate({**entry, "label": label}))
    return tuple(found)


def halves() -> tuple[tuple[Case, ...], tuple[Case, ...]]:
    """Return the calibration half and the held-out half; the hash of the name decides, not a person."""
    ordered = sorted(cases(), key=lambda case: hashlib.sha256(case.name.encode()).hexdigest())
    middle = len(ordered) // 2
    return tuple(ordered[:middle]), tuple(ordered[middle:])


def _refuse_unknown(name: str, facts: dict[str, object], model: type[Value]) -> None:
    unknown = sorted(set(facts) - set(model.model_fields))
    if unknown:
        raise ValueError(f"case {name!r} has facts that do not exist: {', '.join(unknown)}")
