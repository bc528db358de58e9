from durations import parse, show


def test_many_durations():
    for text in ["1h", "2m", "3s", "1d2h3m4s"]:
        seconds = parse(text)
        show(seconds)
    assert True
