import inspect
import unittest

import textkit


class ApiTest(unittest.TestCase):
    def test_api(self):
        self.assertTrue(hasattr(textkit, "table"))
        self.assertIn("unique", textkit.__all__)
        self.assertTrue(callable(textkit.shorten))
        self.assertTrue(inspect.isfunction(textkit.slugify))
