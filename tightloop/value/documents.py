"""YAML loading with limits, because a few bytes of aliases (`*name`) can expand to any number of values."""

from typing import Any

import yaml

ALIASED_LIMIT = 20_000
"""Maximum number of values that the aliases in a text may expand to."""
VALUES_LIMIT = 1_000_000
DEPTH_LIMIT = 100
"""Maximum nesting depth. Readers are recursive, and Python's default limit is 1 000 frames."""


class BoundsError(yaml.MarkedYAMLError):
    """Raised if a text expands to too many values or to an infinite structure."""

    def __init__(self, problem: str, position: Any, suggestion: str) -> None:
        super().__init__(problem=problem, problem_mark=position, note=suggestion or None)
        self.message = problem
        self.mark = position
        self.suggestion = suggestion


class Bounds:
    """Counts the values in a text before any value is created, based on parser events."""

    def __init__(self) -> None:
        self._values = 0
        self._aliased = 0
        self._sizes: dict[str, tuple[int, int]] = {}
        """Size and depth by anchor."""
        self._open: list[tuple[str | None, int]] = []
        """Open lists and mappings: the anchor of each and the number of values before it."""
        self._levels: list[int] = [0]

    def add(self, event: Any) -> None:
        """Count the values that a parser event creates.

        Raises:
            BoundsError: a limit is exceeded, or an alias refers to itself.
        """
        if isinstance(event, yaml.StreamStartEvent):
            # A plan's text form has several streams; anchors are scoped to a stream, the counts are not.
            self._sizes, self._open, self._levels = {}, [], [0]
        elif isinstance(event, yaml.CollectionEndEvent):
            self._end()
        elif isinstance(event, yaml.NodeEvent):
            self._begin(event)

    def _begin(self, event: Any) -> None:
        values, levels = 1, 0
        if isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._sizes:
                raise _make_error(event, f"alias '*{event.anchor}' is used before its anchor is complete")
            values, levels = self._sizes[event.anchor]
            self._aliased += values
        elif event.anchor:
            # The anchor cannot be used until its node is complete, and an earlier node of that name is shadowed.
            self._sizes.pop(event.anchor, None)
        self._values += values
        if self._aliased > ALIASED_LIMIT:
            raise _make_error(event, f"aliases expand to more than {ALIASED_LIMIT} values", "Use fewer aliases")
        if self._values > VALUES_LIMIT:
            raise _make_error(event, f"the text has more than {VALUES_LIMIT} values", "Split it")
        if len(self._open) + levels > DEPTH_LIMIT:
            raise _make_error(event, f"nested deeper than {DEPTH_LIMIT} levels")
        self._levels[-1] = max(self._levels[-1], levels)
        if isinstance(event, yaml.CollectionStartEvent):
            self._open.append((event.anchor, self._values - 1))
            self._levels.append(0)
        elif event.anchor and not isinstance(event, yaml.AliasEvent):
            self._sizes[event.anchor] = (1, 0)

    def _end(self) -> None:
        anchor, before = self._open.pop()
        levels = self._levels.pop() + 1
        self._levels[-1] = max(self._levels[-1], levels)
        if anchor:
            self._sizes[anchor] = (self._values - before, levels)


class _BoundedLoader(yaml.SafeLoader):
    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._bounds = Bounds()

    def get_event(self) -> Any:
        # Nodes are composed from events, and values are constructed only after all events were read.
        event: Any = super().get_event()  # type: ignore[no-untyped-call]
        self._bounds.add(event)
        return event


def load_yaml(text: str) -> Any:
    """Load a single YAML 1.1 document.

    Raises:
        yaml.YAMLError: the text is not valid YAML or exceeds the limits.
    """
    try:
        return yaml.load(text, Loader=_BoundedLoader)  # noqa: S506 - it is a SafeLoader
    except (ValueError, RecursionError, OverflowError) as error:
        # A number with more than 4 300 digits, or a date that does not exist.
        raise yaml.YAMLError(" ".join(str(error).split())) from error


def _make_error(event: Any, problem: str, suggestion: str = "") -> BoundsError:
    return BoundsError(problem, event.start_mark, suggestion)
