from durations import parse, show


def test_parse_and_show():
    seconds = parse("1h30m")
    text = show(seconds)
    print(text)
