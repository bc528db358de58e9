from versions import parse


def test_versions_are_read():
    assert parse("v1.20.3") == (1, 20, 3, "")
    assert parse("1.2.3-rc.1") == (1, 2, 3, "rc.1")


def test_what_is_no_version_is_not_read():
    assert parse("1x2y3") is None
    assert parse("1.2.3.4") is None
    assert parse("1.2.3\n") is None
    assert parse("01.2.3") is None
