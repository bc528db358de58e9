"""Presets of the bounds that tell when an episode left its course and what a person has to look at."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from tightloop.episode.progress.tracking import Thresholds
from tightloop.safety.rubric import Rubric


class Preset(StrEnum):
    """How soon a person is asked."""

    CAREFUL = "careful"
    """About half of what `normal` bears, for code that people depend on."""
    NORMAL = "normal"
    """Calibrated on `tests/data/deviation` and `tests/data/alignment`; the other two are scaled from it."""
    BOLD = "bold"
    """About twice of what `normal` bears, for experiments and long refactorings."""


# Of each bound: careful, bold.
_TRACKING: Mapping[str, tuple[float, float]] = {
    "high_from": (0.7, 0.5),
    "medium_from": (0.5, 0.3),
    "growth_keeps": (0.98, 0.9),
    "scope_share_medium": (0.2, 0.6),
    "scope_share_low": (0.5, 0.9),
    "open_items_medium": (1, 4),
    "open_items_low": (3, 8),
    "no_change_low": (1, 3),
    "same_error_low": (2, 5),
    "iterations_per_progress": (2, 8),
    "tokens_per_progress": (1_000_000, 4_000_000),
    "cost_usd_per_progress": (2.5, 10.0),
    "hours_per_progress": (1.0, 4.0),
    "cost_low_factor": (1.5, 3.0),
    "reasons_low": (2, 4),
    "deviation_limit": (1, 4),
    "repeat_error_limit": (2, 6),
}
_ALIGNMENT: Mapping[str, tuple[float, float]] = {
    "cpu_minutes": (5.0, 20.0),
    "wall_minutes": (45.0, 180.0),
    "deleted_files": (10, 50),
    "deleted_share": (0.25, 0.8),
    "deleted_lines": (250, 1_000),
    "suppressions": (2, 10),
}


def _presets(scaled: Mapping[str, tuple[float, float]], normal: Mapping[str, Any]) -> dict[Preset, dict[str, Any]]:
    careful, bold = ({name: pair[place] for name, pair in scaled.items()} for place in (0, 1))
    return {Preset.CAREFUL: careful, Preset.NORMAL: dict(normal), Preset.BOLD: bold}


TRACKING = _presets(_TRACKING, {**Thresholds().model_dump(), "deviation_limit": 2, "repeat_error_limit": 3})
"""Fields of `Thresholds`, and the two limits that stand beside them in a request."""
ALIGNMENT = _presets(_ALIGNMENT, Rubric().model_dump(exclude={"enabled", "allow"}))
"""Fields of `Rubric`."""
LIMITS = ("deviation_limit", "repeat_error_limit")


def under(values: Any, presets: Mapping[Preset, Mapping[str, Any]]) -> Any:
    """Put the values of the named preset under those that are given one by one; anything else is left as it is."""
    if not isinstance(values, Mapping) or values.get("preset") not in list(Preset):
        return values
    return {**presets[Preset(values["preset"])], **values}


def under_request(request: Any) -> Any:
    """Do the same for a request, where the thresholds are a part of their own."""
    if not isinstance(request, Mapping) or request.get("preset") not in list(Preset):
        return request
    chosen = dict(TRACKING[Preset(request["preset"])])
    limits = {name: chosen.pop(name) for name in LIMITS}
    given = request.get("thresholds", {})
    return {**limits, **request, "thresholds": {**chosen, **given} if isinstance(given, Mapping) else given}
