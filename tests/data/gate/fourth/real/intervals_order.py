import pytest

from intervals import merge


@pytest.mark.parametrize(
    "given, wanted",
    [
        ([], []),
        ([(5, 9), (1, 3)], [(1, 3), (5, 9)]),
        ([(1, 10), (2, 3)], [(1, 10)]),
        ([(1, 2), (2, 4)], [(1, 4)]),
    ],
)
def test_merge(given, wanted):
    assert merge(given) == wanted
