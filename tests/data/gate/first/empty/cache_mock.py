from unittest.mock import MagicMock

from cache import Cache


def test_cache():
    cache = MagicMock(spec=Cache)
    cache.get.return_value = 5
    assert cache.get("a") == 5
    cache.get.assert_called_once_with("a")
