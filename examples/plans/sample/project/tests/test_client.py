import unittest

from relay.client import Client
from relay.message import Request, Response


class ClientTest(unittest.TestCase):
    def test_an_answer_is_passed_on(self):
        client = Client(lambda request: Response(200, request.path))
        self.assertEqual(client.send(Request("GET", "/a")), Response(200, "/a"))
