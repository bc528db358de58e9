from report.summary import share


def test_share_formula():
    part, whole = 42, 160
    percent = 100 * part / whole
    assert share(part, whole) == ("<1 %" if 0 < percent < 1 else f"{percent:.0f} %")
