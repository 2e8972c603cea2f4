"""Hand-overs on their way, and the shared memory that each holds until the engines have let go of it."""

from loadslice.backends.language.host import SharedSlots

Key = tuple[int, int]
"""Row and epoch of the sequence."""


class Handover:
    """One of them.

    Args:
        prefill: Engine that computed the prompt.
        decode: Engine that goes on.
        slot: Of shared memory.
    """

    __slots__ = ("decode", "export_ns", "is_exported", "payload_bytes", "prefill", "slot", "tokens")

    def __init__(self, prefill: int, decode: int, slot: int) -> None:
        self.prefill, self.decode, self.slot = prefill, decode, slot
        self.is_exported = False
        self.export_ns = self.payload_bytes = self.tokens = 0

    def ends_with(self, engine: int) -> bool:
        """Whether nobody touches its slot any more once an engine is gone."""
        return self.decode == engine if self.is_exported else self.prefill == engine


class Handovers:
    """All of one server's.

    Args:
        slots: Twice as many as the links have: one whose lease ran out may still be written while the next is begun.
    """

    def __init__(self, slots: SharedSlots) -> None:
        self.slots = slots
        self._of: dict[Key, Handover] = {}

    def begin(self, key: Key, prefill: int, decode: int) -> Handover | None:
        """Take memory for one; ``None``: none is free."""
        if self.slots.free == 0:
            return None
        handover = self._of[key] = Handover(prefill, decode, self.slots.take())
        return handover

    def find(self, key: Key) -> Handover | None:
        """One that still holds its memory."""
        return self._of.get(key)

    def let_go(self, key: Key) -> None:
        """Nobody reads or writes its memory any more."""
        self.slots.give_back(self._of.pop(key).slot)

    def engine_down(self, engine: int) -> None:
        """Let go of those that an engine which is lost was the last to touch."""
        for key in [key for key, one in self._of.items() if one.ends_with(engine)]:
            self.let_go(key)
