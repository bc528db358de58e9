"""The adapter of this side: the only code of the harness that knows names of the product."""

from tests.support.differential.product.side import Side, open_side

__all__ = ["Side", "open_side"]
