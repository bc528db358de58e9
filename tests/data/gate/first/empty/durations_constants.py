from durations import UNITS, parse


def test_units():
    parse("2h")
    assert 60 * 60 == 3600
    assert "h" in ["h", "m", "s"]
