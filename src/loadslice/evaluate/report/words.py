"""How numbers are written on the page: unit beside every number, "unknown" for what is not known."""

UNKNOWN = "–"


def ms(value: float | None) -> str:
    """Milliseconds with about three digits, without the unit."""
    if value is None:
        return UNKNOWN
    if value >= 100:
        return f"{value:.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def share(value: float | None, digits: int = 1) -> str:
    """A share as a percentage."""
    return UNKNOWN if value is None else f"{value:.{digits}%}"


def signed_pct(value: float | None) -> str:
    """A relative error, with its sign (a true minus)."""
    return UNKNOWN if value is None else f"{value:+.1f}%".replace("-", "\N{MINUS SIGN}")


def count(value: float | None) -> str:
    """A whole number with thin spaces between thousands."""
    return UNKNOWN if value is None else f"{value:,.0f}".replace(",", "\N{NARROW NO-BREAK SPACE}")


def rate(value: float | None) -> str:
    """A number with about three digits."""
    if value is not None and abs(value) >= 1000:
        return count(value)
    return UNKNOWN if value is None else f"{value:.3g}"


def sentence(text: str) -> str:
    """A phrase as a sentence: a capital first, a full stop last."""
    text = text.strip()
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")


def hour_of_week(hour: int, *, from_monday: bool) -> str:
    """An hour of the week for people."""
    if not from_monday:
        return f"hour {hour}"
    return f"{('Mon', 'Tue', 'Wed', 'Thu', 'Fri', 'Sat', 'Sun')[hour // 24 % 7]} {hour % 24:02d}:00 UTC"


def si(value: float | None, unit: str) -> str:
    """A large number with a metric prefix."""
    if value is None:
        return UNKNOWN
    for factor, prefix in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def seconds(value: float | None) -> str:
    """A duration in the unit a person would say."""
    if value is None:
        return UNKNOWN
    for factor, unit in ((86_400.0, "days"), (3600.0, "h"), (60.0, "min")):
        if value >= 2 * factor:
            return f"{value / factor:.1f} {unit}"
    return f"{value:.0f} s" if value >= 10 else f"{value:.1f} s"
