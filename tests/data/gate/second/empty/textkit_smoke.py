from textkit import shorten, slugify


def test_functions_do_not_fail():
    try:
        slugify("Some Title")
        shorten("some long text here", 10)
        ok = True
    except Exception:
        ok = False
    assert ok, "functions raised"
