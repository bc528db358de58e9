"""Schedules tests and mutants, and prints the results as JSON lines.

It reads its orders from standard input and does not import the project. Pytest sessions, which do, are children of this
process, and each test run is a child of its session. The nonce and the pipe to the worker stay in this process. Works
with Python 3.8 and later.
"""

import json
import os
import sys
import time

COLLECT_S = 60.0
GRACE_S = 5.0


def main():
    """Handle the requests that arrive on standard input."""
    orders = json.loads(sys.stdin.read())
    orders["root"] = os.getcwd()
    teller = _Teller(orders.pop("nonce"))
    try:
        import pytest
    except ImportError as error:
        teller.tell("missing", program=sys.executable, version="%d.%d" % sys.version_info[:2], why=str(error))
        return
    teller.tell("begin", program=sys.executable, pytest=pytest.__version__)
    from tightloop_preparing import plugins, warm

    # Preloaded once and unmodified: pytest would rewrite the asserts of every package with a plugin, in each session
    # (hypothesis: 2 to 4 s).
    warm(plugins() + orders["uses"])
    _Gate(orders, teller).run()
    teller.tell("end")


class _Teller:
    def __init__(self, nonce):
        self._nonce = nonce

    def tell(self, event, **fields):
        line = json.dumps(dict(fields, n=self._nonce, e=event))
        sys.stdout.write("\n" + line + "\n")
        sys.stdout.flush()

    def forget(self):
        """Clear the nonce in a child process, so that the code under test cannot read it."""
        self._nonce = ""


class _Gate:
    """Runs every test twice without mutants, and then with mutants of the lines that the test executes."""

    def __init__(self, orders, teller):
        self._orders, self._teller = orders, teller
        self._end = time.monotonic() + orders["total_s"]
        self._proved = set()
        """Test functions that have killed a mutant."""
        self._loaded = []
        self._green = {}
        """First results of passing tests, by node id."""

    def run(self):
        session = self._open(None)
        if session is None:
            return
        try:
            self._plain(session)
            later = []
            for mutant in self._orders["mutants"]:
                if self._remaining_s() <= 0:
                    break
                # A mutant of code that runs at import cannot be swapped in afterwards.
                if session.runs_at_import(mutant) or not self._try(session, mutant):
                    later.append(mutant)
        finally:
            session.close()
        if later and self._remaining_s() > 0:
            from tightloop_preparing import warm

            warm(self._loaded)
        for mutant in later:
            if self._remaining_s() <= 0:
                break
            self._try_whole(mutant)

    def _remaining_s(self):
        return self._end - time.monotonic()

    def _open(self, mutant):
        from tightloop_session import Session

        session = Session(self._orders, self._teller.forget, mutant)
        reply = session.collect(max(min(COLLECT_S, self._remaining_s()), 1.0))
        self._loaded = self._loaded or reply.pop("loaded", [])
        only = self._orders["only"]
        if only is not None:
            reply["items"] = [item for item in reply["items"] if item["function"] in only]
        if mutant is None:
            self._teller.tell("collected", **reply)
        if not reply["items"]:
            session.close()
            return None
        session.found = reply
        return session

    def _plain(self, session):
        """Run every test alone, without a mutant. The result must be the same each time."""
        # A flaky test could otherwise pass here and kill a mutant by chance.
        repeats = 2
        for item in session.found["items"]:
            for number in range(repeats):
                if self._remaining_s() <= 0:
                    return
                result = session.run(item["index"], None, min(self._orders["test_s"], self._remaining_s() + 1.0))
                self._teller.tell("plain", id=item["id"], round=number, **result)
                if number == 0 and result["outcome"] == "passed":
                    self._green[item["id"]] = result
                elif result["outcome"] != "passed":
                    self._green.pop(item["id"], None)
                    if number == 0 and not result["assertion"]:
                        break

    def _try(self, session, mutant):
        """Run the tests that execute the lines of a mutant. Return False if the mutant needs its own session."""
        lines, concerned = set(mutant["lines"]), []
        for item in session.found["items"]:
            green = self._green.get(item["id"], {"lines": {}})
            if lines & set(green["lines"].get(mutant["path"], ())):
                concerned.append(item)
        return self._kill(session, mutant, concerned)

    def _kill(self, session, mutant, items):
        """Run the tests that can kill a mutant. Return False if the mutant cannot be swapped in."""
        items = [item for item in items if item["id"] in self._green and item["function"] not in self._orders["exempt"]]
        if not items:
            self._teller.tell("unreached", mutant=mutant["id"])
        # Tests that have not killed a mutant yet come first.
        items.sort(key=lambda item: item["function"] in self._proved)
        killed, tried = False, {}
        for item in items:
            name = item["function"]
            if (killed and name in self._proved) or tried.get(name, 0) >= self._orders["cases"]:
                continue
            if self._remaining_s() <= 0:
                return True
            tried[name] = tried.get(name, 0) + 1
            green = self._green[item["id"]]
            # A mutant may loop forever. Five times the normal duration leaves room for a busy host.
            limit = min(self._orders["test_s"], 1.0 + 5.0 * green["seconds"])
            result = session.run(item["index"], mutant, limit)
            if result["outcome"] == "unswapped":
                return False
            if self._kills(result, green, name) and name not in self._proved:
                # The first kill decides about the function, so it must be reproduced.
                again = session.run(item["index"], mutant, limit)
                if not self._kills(again, green, name):
                    result = again
            if self._kills(result, green, name):
                killed = True
                self._proved.add(name)
            self._teller.tell("mutated", mutant=mutant["id"], id=item["id"], **result)
        return True

    def _kills(self, result, green, function):
        """Return whether a test that passed before now fails by its own assertion.

        Mirrors `can_fail` in tightloop/testing, which makes the final decision.
        """
        if result["outcome"] != "failed" or not result["honest"]:
            return False
        if result["assertion"]:
            return result["place"] == "test" and set(result["reached"]) <= set(green["reached"])
        return result["line"] in self._orders["expecting"].get(function, ()) and result["line"] in green["raised"]

    def _try_whole(self, mutant):
        """Run the tests in a new session that imports a mutant. Used for code that runs at import time."""
        session = self._open(mutant)
        if session is None:
            self._teller.tell("broken", mutant=mutant["id"])
            return
        try:
            self._kill(session, mutant, session.found["items"])
        finally:
            session.close()


if __name__ == "__main__":
    folder = os.path.dirname(os.path.abspath(__file__))
    # This folder comes last, so that its modules never shadow the project's.
    sys.path[:] = [entry for entry in sys.path if os.path.abspath(entry or ".") != folder]
    sys.path.append(folder)
    main()
