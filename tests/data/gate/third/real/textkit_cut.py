import pytest

from textkit import shorten


def test_cuts_at_a_space():
    assert shorten("the quick brown fox", 12) == "the quick..."
    assert shorten("abcdefghij", 6) == "abc..."
    assert shorten("short", 5) == "short"


def test_too_narrow():
    with pytest.raises(ValueError):
        shorten("text", 2)
