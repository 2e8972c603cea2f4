"""Whether there is memory for the KV that a language file asks for.

Its pages are taken when they are first written, so what is missing would show only under load, by an engine's end.
"""

from loadslice.backends.probe import free_memory_bytes
from loadslice.spec.errors import InputError

GIGABYTE = 1e9


def check_room(need_bytes: int, what: str, remedy: str, *, free_bytes: int | None = None) -> None:
    """Refuse what does not fit.

    Args:
        need_bytes: Of KV.
        what: Whose, in words.
        remedy: What can be said in the language file for less.
        free_bytes: As `probe.free_memory_bytes` has it, which is asked if absent.

    Raises:
        InputError: Says how much is needed and how much there is.
    """
    free = free_memory_bytes() if free_bytes is None else free_bytes
    if need_bytes > free:
        raise InputError(
            f"{what} takes {need_bytes / GIGABYTE:.3g} GB of memory, and {free / GIGABYTE:.3g} GB are free. {remedy}"
        )
