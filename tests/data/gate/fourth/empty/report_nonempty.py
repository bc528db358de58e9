from report.summary import share, totals


def test_results_exist():
    assert totals([{"a": "x", "b": "1"}], "a", "b")
    assert share(1, 2)
    assert len(share(1, 3)) > 0
