from durations import show


def test_show():
    assert show(0) == "0s"
    assert show(90061) == "1d1h1m1s"
    assert show(-60) == "-1m"
