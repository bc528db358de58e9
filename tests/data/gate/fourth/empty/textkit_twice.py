import unittest

from textkit import table


class TableTest(unittest.TestCase):
    def test_table(self):
        rows = [("a", 1), ("bb", 22)]
        self.assertEqual(table(rows), table(rows))
        self.assertEqual(rows, [("a", 1), ("bb", 22)])
