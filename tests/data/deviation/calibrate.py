"""Sweeps each threshold alone over the calibration half of the cases: `python -m tests.data.deviation.calibrate`.

Prints how many classes are right, and how many calls for attention, for each value. The held-out half is not read.
"""

from collections.abc import Sequence

from tests.data.deviation import Case, halves
from tightloop.episode.progress.classification import classify
from tightloop.episode.progress.tracking import ProbabilityClass, Thresholds

SWEEPS: dict[str, Sequence[float]] = {
    "high_from": (0.5, 0.55, 0.6, 0.65, 0.7),
    "medium_from": (0.2, 0.3, 0.4, 0.5),
    "growth_keeps": (0.8, 0.9, 0.95, 0.99, 1.0),
    "scope_share_medium": (0.0, 0.1, 0.2, 0.25, 0.3, 0.35, 0.4, 0.45, 0.5),
    "scope_share_low": (0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0),
    "open_items_medium": (1, 2, 3, 4),
    "open_items_low": (3, 4, 5, 6, 8),
    "no_change_low": (1, 2, 3),
    "same_error_low": (2, 3, 4),
    "iterations_per_progress": (2, 3, 4, 5, 6),
    "tokens_per_progress": (500_000, 1_000_000, 1_500_000, 2_000_000, 2_500_000, 3_000_000),
    "cost_usd_per_progress": (1.0, 2.0, 3.0, 5.0, 6.0, 8.0),
    "hours_per_progress": (0.5, 1.0, 1.5, 2.0, 2.5, 3.0),
    "cost_low_factor": (1.5, 2.0, 2.5, 3.0),
    "reasons_low": (2, 3, 4),
}


def right(cases: Sequence[Case], thresholds: Thresholds) -> tuple[int, int]:
    """Return how many classes, and how many answers to "does it need attention", are as labelled."""
    found = [classify(case.facts, thresholds)[0] for case in cases]
    high = ProbabilityClass.HIGH
    pairs = list(zip(found, (case.label for case in cases), strict=True))
    return sum(a is b for a, b in pairs), sum((a is high) == (b is high) for a, b in pairs)


def main() -> None:
    """Print one line for each threshold."""
    cases, _ = halves()
    print(f"{len(cases)} cases; as it is: {right(cases, Thresholds())}")
    for name, values in SWEEPS.items():
        now = Thresholds()
        found = [(value, *right(cases, now.evolve(**{name: value}))) for value in values]
        shown = "  ".join(f"{value:g}: {classes}/{attention}" for value, classes, attention in found)
        print(f"{name} (now {getattr(now, name):g})  {shown}")


if __name__ == "__main__":
    main()
