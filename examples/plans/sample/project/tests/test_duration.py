import unittest

from relay.duration import seconds


class DurationTest(unittest.TestCase):
    def test_one_unit(self):
        self.assertEqual([seconds("90s"), seconds("5m"), seconds("2h")], [90, 300, 7200])

    def test_nonsense_is_refused(self):
        self.assertRaises(ValueError, seconds, "soon")
