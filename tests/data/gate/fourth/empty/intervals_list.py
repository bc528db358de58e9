from intervals import merge


def test_merge_returns_list():
    result = merge([(1, 2), (5, 8)])
    assert isinstance(result, list)
    for item in result:
        assert isinstance(item, tuple)
        assert len(item) == 2
