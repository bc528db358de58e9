from durations import UNITS, parse


def test_every_unit_alone():
    assert {unit: parse("1" + unit) for unit in UNITS} == {"d": 86400, "h": 3600, "m": 60, "s": 1}


def test_same_unit_twice():
    assert parse("5m5m") == 600
