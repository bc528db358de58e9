import logging

from cache import Cache


def test_cache_logs(caplog):
    caplog.set_level(logging.DEBUG)
    cache = Cache(2)
    cache.put("a", 1)
    value = cache.get("a")
    logging.info("value is %s", value)
    assert "value is" in caplog.text
