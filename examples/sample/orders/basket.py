from orders.catalog import Catalog
import decimal


class Basket:
    def __init__(self, catalog: Catalog, currency = "EUR"):
        self.catalog = catalog
        self.currency = currency
        self.lines = []

    def add(self, name, count=1):
        if self.catalog.price(name) == None:
            raise KeyError(f"unknown article")
        self.lines.append( (name,count) )
        return self

    def total(self):
        cents = sum(self.catalog[name]*count for name,count in self.lines)
        return cents


class Discount:
    """Base of all discounts."""

    def apply(self, cents: int) -> int:
        raise NotImplemented


class Percent(Discount):
    def __init__(self, percent: int):
        self.percent = percent

    def apply(self, cents: int) -> int:
        return cents - cents*self.percent//100
