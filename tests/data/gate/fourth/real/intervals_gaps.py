import unittest

from intervals import covers, gaps


class TestIntervals(unittest.TestCase):
    def test_gaps(self):
        self.assertListEqual(gaps([(1, 3), (5, 6), (10, 12)]), [(3, 5), (6, 10)])
        self.assertEqual(gaps([(1, 3)]), [])

    def test_end_is_not_covered(self):
        self.assertTrue(covers([(1, 3)], 1))
        self.assertFalse(covers([(1, 3)], 3))
        self.assertFalse(covers([], 3))
