import unittest

import durations


class ParseTest(unittest.TestCase):
    def test_case_and_spaces(self):
        for text, seconds in {" 2H ": 7200, "1D": 86400, "10s": 10}.items():
            with self.subTest(text=text):
                self.assertEqual(durations.parse(text), seconds)
