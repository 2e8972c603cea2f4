"""Predicates of routing rules over whole numbers."""

from loadslice.spec.errors import InputError


def bounds(text: str, place: str) -> tuple[int, int]:
    """Inclusive integer bounds of a predicate such as ``'>8'``.

    Raises:
        InputError: Not a comparison with a whole number.
    """
    top = 2**62
    for sign, low, high in (
        (">=", 0, None),
        ("<=", None, 0),
        (">", 1, None),
        ("<", None, -1),
        ("=", 0, 0),
        ("", 0, 0),
    ):
        if text.startswith(sign):
            digits = text.removeprefix(sign).strip()
            if not digits.isdigit():
                break
            value = int(digits)
            return (0 if low is None else value + low, top if high is None else value + high)
    raise InputError(f"{place}: '{text}' is not like '>8', '>=8', '<8', '<=8' or '8'.")
