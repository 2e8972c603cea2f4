"""Batches made ready once and run many times: the same message once more means the same model, shapes and places.

Measured on two cores, a batch of the smallest model: 5 us where it is ready, 18 us where it is run from its message,
36 us where it is made ready first. So what is ready is kept, and where there is no room for more, making one ready in
place of another must be rare: a slot that goes through more kinds of batches than it can keep would otherwise make
every one of them ready in turn, in vain.
"""

from collections.abc import Callable, Mapping

from loadslice.backends.base import NotPreparedError, Prepares, Session, TensorInfo
from loadslice.backends.isolated.arena import Arena
from loadslice.backends.isolated.messages import Placed, Run
from loadslice.spec.work import Tensor

READY_MAX = 512
"""Batches kept ready by one slot, 6 kB each: sixteen models and shapes of 32 counts of rows, or four of them in each
of four places."""

TURNOVER = 8
"""Where there is no room, every such batch that is not ready takes the place of the one that has been for longest."""

Made = tuple[int, Callable[[], None], list[Placed]]
"""The model's number, what runs a batch, and where its outputs are then."""


class Ready:
    """What one slot has ready.

    Args:
        arena: Of the slot.
        slot: Its number.
    """

    def __init__(self, arena: Arena, slot: int) -> None:
        self._arena = arena
        self._slot = slot
        self._made: dict[bytes, Made] = {}
        """By message, in the order they were made."""
        self._missed = 0

    def __len__(self) -> int:
        return len(self._made)

    def run(self, message: bytes) -> list[Placed] | None:
        """Run a batch that is ready; ``None``: it is not.

        Raises:
            EngineError: The runtime failed.
        """
        made = self._made.get(message)
        if made is None:
            return None
        try:
            made[1]()
        except NotPreparedError:
            self.drop(made[0])
            return None
        return made[2]

    def make(self, message: bytes, order: Run, sessions: Mapping[int, Session]) -> bool:
        """Make a batch ready whose outputs the runtime can write where the server wants them; whether it is.

        Raises:
            StageInputError: A feed has the wrong name, type or shape.
        """
        # Asked by name: whether an object fits a protocol takes microseconds to find out.
        prepared = getattr(sessions[order.number], Prepares.prepared.__name__, None)
        if prepared is None:
            return False
        if len(self._made) >= READY_MAX:
            self._missed += 1
            if self._missed % TURNOVER:
                return False
            del self._made[next(iter(self._made))]
        outputs: dict[str, Tensor] = {}

        def place(infos: list[TensorInfo], shapes: list[tuple[int, ...]]) -> dict[str, Tensor] | None:
            outputs.update(self._arena.room(infos, shapes, order.section) or {})
            return outputs or None

        run = prepared(self._arena.views(order.feeds), self._slot, place)
        if run is None:
            return False
        # Nothing is copied: they are there already.
        self._made[message] = order.number, run, self._arena.put(outputs, order.section)
        return True

    def drop(self, number: int) -> None:
        """Forget what is ready of a model."""
        for message in [message for message, made in list(self._made.items()) if made[0] == number]:
            self._made.pop(message, None)
