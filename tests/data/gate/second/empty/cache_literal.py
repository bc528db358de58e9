from cache import Cache


class TestCache:
    def test_put_and_get(self):
        cache = Cache(3, seconds=60)
        cache.put("key", "value")
        data = {"key": "value"}
        assert data["key"] == "value"
        assert len(data) == 1
