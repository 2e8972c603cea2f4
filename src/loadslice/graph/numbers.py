"""Numbers as a person reads them."""


def scaled(value: float | None, unit: str) -> str:
    """A number with a decimal prefix, for instance ``5.68 GFLOP``; ``unknown`` for ``None``."""
    if value is None:
        return "unknown"
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5:
            return f"{value:.3g} {prefix}{unit}".rstrip()
        value /= 1000
    return f"{value:.3g} P{unit}"


def number(value: float | None) -> str:
    """Three digits; ``unknown`` for ``None``."""
    return "unknown" if value is None else f"{value:.3g}"
