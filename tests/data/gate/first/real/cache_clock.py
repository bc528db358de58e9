from cache import Cache


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_values_expire():
    clock = Clock()
    cache = Cache(3, seconds=10, clock=clock)
    cache.put("a", 1)
    clock.now = 9.9
    assert cache.get("a") == 1
    clock.now = 10.0
    assert cache.get("a") is None
    assert cache.ratio() == 0.5
