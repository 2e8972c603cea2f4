"""Finding faults on plates: what happens before and after the two parts of the network.

prepare -> [backbone] -> [head] -> pick. `prepare` decodes and resizes on the CPU, the backbone is fixed at one shape so
that an NPU can be built for it, the head is small and runs where there is room, `pick` keeps the best of what overlaps.
"""

from io import BytesIO
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from loadslice.spec.work import RawInput, StageInputError, Work

SIDE_PX = 352
CELLS = 22
"""Cells of the head's grid along a side; a cell answers for the fault whose centre it holds."""
KINDS = ("pit", "chip")
PIXELS_MAX = 20_000_000
SCORE_MIN = 0.5
SIZE_SCALE = 32.0
"""The head says sizes in this many pixels."""
OVERLAP_MAX = 0.3

Floats = npt.NDArray[np.float32]


def prepare(work: Work) -> Work:
    """Decode one image and bring it to the network's size: ``image`` [1, 3, 352, 352], from -1 to 1."""
    body = work.context
    if not isinstance(body, RawInput):
        raise StageInputError("this pipeline takes an image as the body of the request, not tensors.")
    if not body.content_type.startswith("image/"):
        raise StageInputError(f"content type '{body.content_type}' is not image/*.", unsupported_type=True)
    return Work({"image": normalised(_decode(body.body))[None]})


def normalised(image: Image.Image) -> Floats:
    """The network's input for one image, [3, 352, 352]."""
    if image.size != (SIDE_PX, SIDE_PX):
        image = image.resize((SIDE_PX, SIDE_PX), Image.Resampling.BILINEAR)
    pixels = np.asarray(image.convert("RGB"), np.float32)
    return np.ascontiguousarray((pixels / 127.5 - 1).transpose(2, 0, 1))


def pick(work: Work) -> Work:
    """Faults from the head's grid [1, 7, 22, 22]: ``text`` [n], ``confidence`` [n], ``box`` [n, 4] as shares."""
    (grid,) = work.tensors.values()
    boxes, scores, kinds = _decoded(grid[0])
    kept = _without_overlaps(boxes, scores)
    centres = (boxes[kept, :2] + boxes[kept, 2:]) / 2
    text = [f"{KINDS[kind]} {x:.3f} {y:.3f}" for kind, (x, y) in zip(kinds[kept], centres, strict=True)]
    return Work({"text": np.array(text, object), "confidence": scores[kept], "box": boxes[kept]})


def _decode(body: bytes) -> Any:
    try:
        image = Image.open(BytesIO(body))
        width, height = image.size
        if width * height > PIXELS_MAX:
            raise StageInputError(f"the image has {width}x{height} pixels; {PIXELS_MAX} is the most taken.")
        image.load()
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise StageInputError(f"the body is not an image this service can read ({len(body)} bytes).") from error
    return image


def _decoded(grid: Floats) -> tuple[Floats, Floats, npt.NDArray[np.int64]]:
    """Boxes [n, 4] as shares of the image, scores [n] and kinds [n] of the cells that say something."""
    score, dx, dy, size = grid[:4]
    rows, columns = np.nonzero(score > SCORE_MIN)
    x = (columns + 0.5 + dx[rows, columns]) / CELLS
    y = (rows + 0.5 + dy[rows, columns]) / CELLS
    half = np.maximum(size[rows, columns], 0.1) * SIZE_SCALE / SIDE_PX / 2
    boxes = np.stack([x - half, y - half, x + half, y + half], axis=1).astype(np.float32)
    return boxes, score[rows, columns].astype(np.float32), grid[4:, rows, columns].argmax(axis=0)


def _without_overlaps(boxes: Floats, scores: Floats) -> npt.NDArray[np.int64]:
    """Non-maximum suppression: the best first, and nothing that lies over or beside one that was kept."""
    order = np.argsort(-scores, kind="stable")
    kept: list[int] = []
    while order.size:
        best, order = int(order[0]), order[1:]
        kept.append(best)
        order = order[_shared(boxes[best], boxes[order]) <= OVERLAP_MAX]
    return np.array(kept, np.int64)


def _shared(box: Floats, others: Floats) -> Floats:
    """Shared area of one box with each other, over the smaller of the two."""
    low, high = np.maximum(box[:2], others[:, :2]), np.minimum(box[2:], others[:, 2:])
    shared = np.prod(np.maximum(high - low, 0), axis=1)
    areas = np.prod(others[:, 2:] - others[:, :2], axis=1)
    return np.asarray(shared / np.minimum(np.prod(box[2:] - box[:2]), areas), np.float32)
