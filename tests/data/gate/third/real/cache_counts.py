import unittest
from unittest import mock

from cache import Cache


class CountingTest(unittest.TestCase):
    def setUp(self):
        self.clock = mock.Mock(return_value=0)
        self.cache = Cache(5, seconds=1, clock=self.clock)
        self.cache.put("a", 1)

    def test_hits_and_misses(self):
        self.cache.get("a")
        self.cache.get("b")
        self.clock.return_value = 5
        self.cache.get("a")
        self.assertEqual((self.cache.hits, self.cache.misses), (1, 2))
