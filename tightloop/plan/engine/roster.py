"""The numbers and names of a plan's steps, and of those that templates become while it runs."""

from tightloop.plan.engine.graph import Graph, Node


class Roster:
    """Steps by number: first the nodes of the graph, then the steps made from templates in the order of their making.

    Attributes:
        expansions: template's number and how many steps it became, in that order.
    """

    def __init__(self, graph: Graph) -> None:
        """Number the nodes of the graph."""
        self._graph = graph
        self._size = len(graph.nodes)
        self._names = [node.id for node in graph.nodes]
        self._origin = list(range(self._size))
        self._item = [0] * self._size
        self._made: dict[str, int] = {}
        self._instances: dict[int, range] = {}
        self.expansions: list[tuple[int, int]] = []

    def __len__(self) -> int:
        """Return how many steps there are, templates and what they became included."""
        return len(self._names)

    def add(self, template: int, count: int) -> range:
        """Number `count` steps made from a template; of `look-*` they are `look-1`, `look-2` ..."""
        first = len(self._names)
        stem = self._graph.nodes[template].id.removesuffix("*")
        names = [f"{stem}{item + 1}" for item in range(count)]
        self._made.update({name: first + item for item, name in enumerate(names)})
        self._names.extend(names)
        self._origin.extend([template] * count)
        self._item.extend(range(count))
        self._instances[template] = range(first, first + count)
        self.expansions.append((template, count))
        return self._instances[template]

    def node(self, number: int) -> Node:
        """Return the definition: for a step made from a template that of the template."""
        return self._graph.nodes[self._origin[number]]

    def name(self, number: int) -> str:
        """Return the step's id."""
        return self._names[number]

    def find(self, name: str) -> int | None:
        """Return the number of the step with this id."""
        return self._graph.index.get(name, self._made.get(name))

    def origin(self, number: int) -> int:
        """Return the number of the step's template, or its own."""
        return self._origin[number]

    def item(self, number: int) -> int:
        """Return the index of the step's item; 0 for a step of the graph."""
        return self._item[number]

    def made(self, number: int) -> bool:
        """Return whether the step was made from a template."""
        return number >= self._size

    def instances(self, template: int) -> range | None:
        """Return the numbers of what a template became; None before it did."""
        return self._instances.get(template)
