"""The border between device and host: which nodes run together, and what has to be copied where they stop."""

from collections import deque
from collections.abc import Sequence

from loadslice.graph.rewrites.links import Links
from loadslice.graph.steps import Body
from loadslice.spec.coverage import Transfer

_DEQUANTISE = "DequantizeLinear"


def segments(links: Links, places: Sequence[str]) -> list[int | None]:
    """Group the device's nodes into parts that each run without a break.

    Greedy, in dependency order, as ONNX Runtime partitions for its providers: a part takes every device node that is
    ready; host nodes that need a result of the part wait until the part is closed. No part depends on itself by way of
    the host.

    Args:
        links: Of the graph.
        places: Place of each node.

    Returns:
        For each node its part, ``None`` for those not on the device.
    """
    waiting = [len({links.maker[name] for name in node.input if name in links.maker}) for node in links.nodes]
    after: list[list[int]] = [[] for _ in links.nodes]
    for place, node in enumerate(links.nodes):
        for maker in {links.maker[name] for name in node.input if name in links.maker}:
            after[maker].append(place)
    part: list[int | None] = [None] * len(links.nodes)
    ready = deque(place for place, count in enumerate(waiting) if not count)
    delayed: deque[int] = deque()
    border: set[int] = set()
    current, opened = 0, False
    while ready or delayed:
        if not ready:
            current, opened = (current + 1, False) if opened else (current, False)
            border.clear()
            ready, delayed = delayed, deque()
            continue
        place = ready.popleft()
        if places[place] == "device":
            part[place] = current
            opened = True
            border.update(after[place])
        elif places[place] != "load" and place in border:
            delayed.append(place)
            continue
        for reader in after[place]:
            waiting[reader] -= 1
            if not waiting[reader]:
                ready.append(reader)
    return part


def border(body: Body, links: Links, parts: Sequence[int | None], loaded: Sequence[bool]) -> list[Transfer]:
    """Tensors copied across the border in one run, in execution order.

    Two parts of the device hand tensors to each other by way of the host. Stored tensors are on both sides from the
    start, and the model's own inputs and outputs are not counted. What crosses in a quantised model is the quantised
    tensor: a dequantise node is repeated wherever its result is read.

    Args:
        body: The walked model.
        links: Of its graph.
        parts: Part of each node; ``None``: on the host.
        loaded: Which nodes are done at load; what they make is on both sides too.
    """
    found = []
    for place, step in enumerate(body.steps):
        if loaded[place] or step.node.op_type in ("Constant", _DEQUANTISE):
            continue
        for name, value in zip(step.node.output, step.outputs, strict=True):
            readers = {parts[reader] for reader in _readers(links, name) if not loaded[reader]}
            elsewhere = readers - {parts[place]}
            own = parts[place]
            if own is not None and elsewhere:
                found.append(Transfer(tensor=name, direction="to_host", segment=own, bytes=value.nbytes))
            found += [
                Transfer(tensor=name, direction="to_device", segment=part, bytes=value.nbytes)
                for part in sorted(part for part in elsewhere if part is not None)
            ]
    return found


def _readers(links: Links, name: str) -> list[int]:
    """Nodes that compute with a tensor, through the dequantise nodes in between."""
    found = []
    for reader in links.readers[name]:
        node = links.nodes[reader]
        beyond = _readers(links, node.output[0]) if node.op_type == _DEQUANTISE else []
        found += beyond or [reader]
    return found
