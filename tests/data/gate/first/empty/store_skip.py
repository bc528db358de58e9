import pytest
from store.files import merge


@pytest.mark.skip(reason="later")
def test_merge():
    assert merge({"a": 1}, {"a": 2}) == {"a": 2}
