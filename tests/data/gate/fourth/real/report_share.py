import pytest

from report.summary import share


@pytest.mark.parametrize("part, whole, text", [(1, 3, "33 %"), (1, 1000, "<1 %"), (0, 5, "0 %"), (2, 0, "n/a"), (1, 100, "1 %")])
def test_share(part, whole, text):
    assert share(part, whole) == text
