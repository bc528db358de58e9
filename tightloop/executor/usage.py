"""The cost of a call to a model."""

from collections.abc import Iterable

from tightloop.value import Value


class Usage(Value):
    """What one call to a model cost. `None` means that it was not reported, which is not zero."""

    input_tokens: int | None = None
    cached_tokens: int | None = None
    """The part of `input_tokens` that the provider served from its cache."""
    output_tokens: int | None = None
    cost_usd: float | None = None

    @property
    def known(self) -> bool:
        """Whether tokens were reported."""
        return self.input_tokens is not None and self.output_tokens is not None


def total(usages: Iterable[Usage]) -> Usage:
    """Return the sum; a field that one of them did not report is unknown."""
    known = tuple(usages)
    values = {name: [getattr(usage, name) for usage in known] for name in Usage.model_fields}
    return Usage(**{name: None if None in column else sum(column) for name, column in values.items()})
