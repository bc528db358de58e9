import os
import json
from collections import Mapping


class Catalog(Mapping):
    def __init__(self, prices: dict[str, int]) -> None:
        self._prices = dict(prices)

    def __getitem__(self, name: str) -> int:
        return self._prices[name]

    def __iter__(self):
        return iter(self._prices)

    def __len__(self) -> int:
        return len(self._prices)

    def price(self, name: str) -> int | None:
        if name in self._prices: return self._prices[name]
        return None

    def names(self) -> list[str]:
        return sorted( self._prices )
