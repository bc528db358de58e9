from cache import Cache


def test_the_oldest_goes_first():
    cache = Cache(2)
    for number in range(3):
        cache.put(number, str(number))
    assert [cache.get(number) for number in range(3)] == [None, "1", "2"]
