from intervals import length


def test_length():
    passed = False
    try:
        length([(1, 2)])
        passed = True
    finally:
        assert passed
