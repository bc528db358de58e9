import pytest

from intervals import length


def test_backwards():
    with pytest.raises(ValueError, match=r"9 to 2 ends before it starts"):
        length([(1, 2), (9, 2)])
