"""The cart of a customer."""

from dataclasses import dataclass, field

FREE_SHIPPING = 5000
SHIPPING = 490


class OutOfStock(Exception):
    """There is not that much of it."""


@dataclass
class Line:
    """One position."""

    name: str
    price: int
    quantity: int = 1


@dataclass
class Cart:
    """What a customer wants to buy; prices in cents."""

    lines: list = field(default_factory=list)
    stock: dict = field(default_factory=dict)

    def add(self, name, price, quantity=1):
        for line in self.lines:
            if line.name == name and line.price == price:
                self._check(name, line.quantity + quantity)
                line.quantity += quantity
                return
        self._check(name, quantity)
        self.lines.append(Line(name, price, quantity))

    def _check(self, name, quantity):
        if name in self.stock and quantity > self.stock[name]:
            raise OutOfStock(f"only {self.stock[name]} of {name} are left")

    def remove(self, name):
        self.lines = [line for line in self.lines if line.name != name]

    def total(self):
        return sum(line.price * line.quantity for line in self.lines)

    def shipping(self):
        return 0 if not self.lines or self.total() >= FREE_SHIPPING else SHIPPING

    def discounted(self, percent):
        """Return the total less a discount, rounded to the nearest cent, halves up."""
        return (self.total() * (100 - percent) + 50) // 100

    def is_empty(self):
        return not self.lines
