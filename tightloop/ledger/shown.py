"""Amounts of metrics as people read them, on the command line and on the page."""

from tightloop.ledger.metrics import Unit

UNKNOWN = "unknown"
_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400


def amount(value: float | None, unit: Unit) -> str:
    """Return a value in its unit, such as `80 %`, `$0.41` or `1h 5m`; `unknown` is never a number."""
    if value is None:
        return UNKNOWN
    match unit:
        case Unit.SHARE:
            return f"{value:.0%}".replace("%", " %")
        case Unit.USD:
            return f"${value:,.2f}" if value >= 0.01 or value == 0 else f"${value:.4f}"
        case Unit.SECONDS:
            return _span(value)
        case Unit.COUNT:
            return f"{value:,.0f}" if value == int(value) else f"{value:,.1f}"


def _span(seconds: float) -> str:
    if seconds < _MINUTE - 0.5:
        return f"{seconds:.1f}s" if 0 < seconds < 10 else f"{seconds:.0f}s"
    whole = round(seconds)
    for large, small, names in ((_DAY, _HOUR, "dh"), (_HOUR, _MINUTE, "hm"), (_MINUTE, 1, "ms")):
        if whole >= large:
            rest = whole % large // small
            return f"{whole // large}{names[0]} {rest}{names[1]}" if rest else f"{whole // large}{names[0]}"
    return f"{whole}s"
