"""A node as its cost rule sees it, and what a rule answers."""

from dataclasses import dataclass

from loadslice.graph.values import Value


class UnknownCostError(Exception):
    """A node's cost cannot be told; the message is the reason."""


@dataclass(frozen=True, slots=True)
class Work:
    """Arithmetic of one execution."""

    macs: int = 0
    other: int = 0

    @property
    def flops(self) -> int:
        """Two per multiply-accumulate, one per other operation."""
        return 2 * self.macs + self.other


@dataclass(frozen=True, slots=True)
class Operands:
    """A node as its cost rule sees it: standard operator, inputs, outputs, attributes."""

    op: str
    inputs: list[Value | None]
    outputs: list[Value]
    attributes: dict[str, object]

    def shape(self, place: int) -> tuple[int, ...]:
        """Shape of an input.

        Raises:
            UnknownCostError: It is open.
        """
        value = self.inputs[place] if place < len(self.inputs) else None
        return _closed(value, f"input {place}")

    def output_shape(self, place: int = 0) -> tuple[int, ...]:
        """Shape of an output; raises `UnknownCostError` when it is open."""
        return _closed(self.outputs[place] if place < len(self.outputs) else None, f"output {place}")

    def has(self, place: int) -> bool:
        """An optional input is there."""
        return place < len(self.inputs) and self.inputs[place] is not None

    def integer(self, name: str, default: int | None = None) -> int:
        """An integer attribute; raises `UnknownCostError` when it is absent and has no default."""
        value = self.attributes.get(name, default)
        if not isinstance(value, int):
            raise UnknownCostError(f"attribute '{name}' is missing")
        return value


def _closed(value: Value | None, what: str) -> tuple[int, ...]:
    shape = value.shape if value is not None else None
    if shape is None:
        raise UnknownCostError(f"the shape of its {what} is unknown")
    closed = tuple(dim for dim in shape if dim is not None)
    if len(closed) != len(shape):
        raise UnknownCostError(f"the shape of its {what} is open")
    return closed
