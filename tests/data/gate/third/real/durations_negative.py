import unittest

from durations import parse, show


class Negative(unittest.TestCase):
    def test_minus_in_front(self):
        self.assertEqual(show(-3661), "-1h1m1s")
        self.assertTrue(show(-1).startswith("-"))

    def test_cannot_be_parsed(self):
        self.assertRaises(ValueError, parse, "-1h")
