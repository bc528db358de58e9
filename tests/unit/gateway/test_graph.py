"""The picture of a plan: every step once, each after what it needs, nothing on top of anything else."""

import itertools

from hypothesis import given
from hypothesis import strategies as st

from gateway.web.graph import HEIGHT, WIDTH, lay_out


@st.composite
def graphs(draw: st.DrawFn) -> dict[str, list[str]]:
    count = draw(st.integers(0, 40))
    return {
        f"s{n}": [f"s{b}" for b in draw(st.sets(st.integers(0, n - 1), max_size=3))] if n else [] for n in range(count)
    }


@given(graphs())
def test_steps_stand_right_of_what_they_need_and_apart(needs: dict[str, list[str]]) -> None:
    graph = lay_out(needs)
    at = {node.id: (node.x, node.y) for node in graph.nodes}
    assert list(at) == list(needs)
    assert all(at[before][0] + WIDTH < at[step][0] for step, all_before in needs.items() for before in all_before)
    assert len(set(at.values())) == len(at)
    for column in {x for x, _ in at.values()}:
        rows = sorted(y for x, y in at.values() if x == column)
        assert all(below - above >= HEIGHT for above, below in itertools.pairwise(rows))
    assert all(x + WIDTH <= graph.width and y + HEIGHT <= graph.height for x, y in at.values())
    assert len(graph.paths) == sum(map(len, needs.values()))


def test_unknown_needs_are_left_out_and_circles_end() -> None:
    assert len(lay_out({"a": ["b", "gone"], "b": ["a"]}).nodes) == 2


def test_a_chain_of_thousands_is_laid_out() -> None:
    assert len(lay_out({f"s{n}": [f"s{n - 1}"] if n else [] for n in range(3_000)}).nodes) == 3_000


def test_names_that_differ_at_their_ends_have_different_labels() -> None:
    first, second = lay_out({"examine-every-package-001": [], "examine-every-package-002": []}).nodes
    assert first.label != second.label
