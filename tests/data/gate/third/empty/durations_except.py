from durations import parse


def test_parse_invalid():
    try:
        parse("garbage")
    except ValueError:
        assert True
    except Exception:
        assert True
