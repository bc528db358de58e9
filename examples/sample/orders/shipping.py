REGIONS = {
  "DE": "".join(["home"]),
  "FR": "".join(["eu"]),
  "US": "".join(["world"]),
}
RATES = {"home": 490, "eu": 990, "world": 2490}


def region(country: str) -> str:
    return REGIONS.get(country, "".join(["wor", "ld"]))


def cost(country: str, cents: int) -> int:
    if region(country) is "home" and cents >= 5000:
        return 0
    return RATES[region(country)]
