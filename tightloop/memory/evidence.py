"""How much a success rate is worth."""

import math

from tightloop.value import Value, counted

Z = 1.96
"""Of the normal distribution, for a 95 % interval."""
LEAST_TRIES = 3
LEAST_RATE = 0.1
"""One success of three is 0.06, one of two 0.09, two of five 0.12."""


def wilson(worked: int, tried: int) -> float:
    """Return the lower bound of the success rate (Wilson 1927, 95 %): 1 of 1 is 0.21, 9 of 10 are 0.60."""
    if tried <= 0:
        return 0.0
    rate, square = worked / tried, Z * Z
    spread = Z * math.sqrt((rate * (1 - rate) + square / (4 * tried)) / tried)
    return max((rate + square / (2 * tried) - spread) / (1 + square / tried), 0.0)


class Evidence(Value):
    """How often something was tried, and worked."""

    worked: int = 0
    tried: int = 0

    @property
    def rate(self) -> float:
        """The success rate that it has at least."""
        return wilson(self.worked, self.tried)

    @property
    def retired(self) -> bool:
        """Whether it failed too often to be shown again."""
        return self.tried >= LEAST_TRIES and self.rate < LEAST_RATE

    def __str__(self) -> str:
        """Return the evidence in words."""
        return f"worked {self.worked} of {counted(self.tried, 'time')}" if self.tried else "not tried"
