class Basket:
    def __init__(self, items={}):
        self.items = items

    def add(self, name, count=1):
        self.items[name] = self.items.get(name, 0) + count

    def merged(self, other):
        result = Basket(self.items)
        for name, count in other.items.items():
            result.add(name, count)
        return result
