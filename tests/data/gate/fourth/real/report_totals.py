import pytest

from report import summary


@pytest.fixture
def rows():
    return [
        {"who": "Ada", "sum": "2.5"},
        {"who": "Bob", "sum": "7"},
        {"who": "Ada", "sum": "1"},
        {"who": "Cid", "sum": ""},
    ]


class TestTotals:
    def test_largest_first(self, rows):
        assert list(summary.totals(rows, "who", "sum").items()) == [("Bob", 7.0), ("Ada", 3.5), ("Cid", 0.0)]

    def test_unknown_column(self, rows):
        with pytest.raises(summary.ColumnError) as caught:
            summary.totals(rows, "who", "price")
        assert caught.value.args == ("price",)
