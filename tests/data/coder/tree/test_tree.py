from tree import depth, flatten


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value, "x"]
    return value


def test_texts_are_items():
    assert list(flatten([1, ["ab", [2, []]], "c"])) == [1, "ab", 2, "c"]


def test_deep_lists_are_flattened():
    assert list(flatten(nested(5_000))) == ["x"] * 5_000


def test_empty_lists_have_a_depth():
    assert (depth(3), depth([]), depth([[], [1, [2]]])) == (0, 1, 3)
    assert depth(nested(5_000)) == 5_001
