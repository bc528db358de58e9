"""Adding up what several calls to a model cost."""

from collections.abc import Iterable

from tightloop.budget import Usage


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum; a field that one of them did not report is unknown."""
    known = tuple(usages)

    def tokens(values: list[int | None]) -> int | None:
        given = [value for value in values if value is not None]
        return sum(given) if len(given) == len(values) else None

    costs = [usage.cost_usd for usage in known if usage.cost_usd is not None]
    return Usage(
        input_tokens=tokens([usage.input_tokens for usage in known]),
        cached_tokens=tokens([usage.cached_tokens for usage in known]),
        output_tokens=tokens([usage.output_tokens for usage in known]),
        cost_usd=sum(costs) if len(costs) == len(known) else None,
    )
