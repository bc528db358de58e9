from durations import parse


def test_parts_add_up():
    assert parse("1h30m") == 5400
