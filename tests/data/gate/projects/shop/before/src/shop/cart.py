"""The cart of a customer."""

from dataclasses import dataclass, field


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

    def add(self, name, price, quantity=1):
        self.lines.append(Line(name, price, quantity))

    def total(self):
        return sum(line.price for line in self.lines)
