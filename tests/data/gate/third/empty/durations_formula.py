from durations import UNITS, _PART, parse


def test_parse_formula():
    text = "2h45m"
    assert parse(text) == sum(int(number) * UNITS[unit] for number, unit in _PART.findall(text))
