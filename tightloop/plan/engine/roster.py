"""The numbers and names of a plan's steps, and of those that templates become while it runs."""

from collections.abc import Iterable

from tightloop.plan.engine.graph import Graph, Node


class Roster:
    """Steps by number: first the nodes of the graph, then the steps made from templates in the order of their making.

    Attributes:
        names: the ids of the steps.
        origin: for each step the number of its template, or its own.
        item: for each step the index of its item; 0 for a step of the graph.
        expansions: template's number and how many steps it became, in that order.
    """

    def __init__(self, graph: Graph, expansions: Iterable[tuple[int, int]]) -> None:
        """Number the nodes of the graph, then what templates became before."""
        self._graph = graph
        self._size = len(graph.nodes)
        self.names = [node.id for node in graph.nodes]
        self.origin = list(range(self._size))
        self.item = [0] * self._size
        self._made: dict[str, int] = {}
        self._instances: dict[int, range] = {}
        self.expansions: list[tuple[int, int]] = []
        for template, count in expansions:
            self.add(template, count)

    def __len__(self) -> int:
        """Return how many steps there are, templates and what they became included."""
        return len(self.names)

    def add(self, template: int, count: int) -> range:
        """Number `count` steps made from a template; of `look-*` they are `look-1`, `look-2` ..."""
        first = len(self.names)
        stem = self._graph.nodes[template].id.removesuffix("*")
        names = [f"{stem}{item + 1}" for item in range(count)]
        self._made.update({name: first + item for item, name in enumerate(names)})
        self.names.extend(names)
        self.origin.extend([template] * count)
        self.item.extend(range(count))
        self._instances[template] = range(first, first + count)
        self.expansions.append((template, count))
        return self._instances[template]

    def node(self, number: int) -> Node:
        """Return the definition: for a step made from a template that of the template."""
        return self._graph.nodes[self.origin[number]]

    def find(self, name: str) -> int | None:
        """Return the number of the step with this id."""
        return self._graph.index.get(name, self._made.get(name))

    def is_instance(self, number: int) -> bool:
        """Return whether the step was made from a template."""
        return number >= self._size

    def instances(self, template: int) -> range | None:
        """Return the numbers of what a template became; None before it did."""
        return self._instances.get(template)
