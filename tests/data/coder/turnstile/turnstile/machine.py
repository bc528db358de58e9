from turnstile.table import TABLE


class Turnstile:
    def __init__(self):
        self.state = "locked"
        self.coins = 0
        self.passed = 0

    def handle(self, event):
        """Take an event and return the new state; one that does not fit is refused and changes nothing."""
        if event == "coin":
            self.coins += 1
        if event == "push":
            self.passed += 1
        self.state = TABLE[self.state, event]
        return self.state
