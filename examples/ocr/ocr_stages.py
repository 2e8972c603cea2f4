"""Reading text in images with PP-OCRv4: what happens before, between and after the three models.

prepare -> [detect] -> crop -> [orient] -> turn -> [recognise] -> read. Every function takes a `Work` and gives one:
its tensors are what the next model reads, its context (a `Page`) is what later stages need to know. An image without
text goes through with zero rows. All functions are pure, so that several threads may run them at once.
"""

from dataclasses import dataclass, field
from functools import cache
from io import BytesIO
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import numpy.typing as npt
import onnx
from PIL import Image

from loadslice.spec.files import resolve_model
from loadslice.spec.work import RawInput, StageInputError, Work

# Engines own the cores; OpenCV must not start threads of its own beside them.
cv2.setNumThreads(1)

Pixels = npt.NDArray[np.uint8]
"""[height, width, 3], blue first as OpenCV reads it."""
Floats = npt.NDArray[np.float32]

PIXELS_MAX = 40_000_000
"""A larger image is refused before it is decoded."""
SIDE_MAX_PX = 960
"""Longer images are shrunk; the detector was trained at about this size."""

# Values of the detector's training (PP-OCRv4 det): ImageNet statistics, in the channel order the image is read in.
DETECT_MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DETECT_STD = np.array([0.229, 0.224, 0.225], np.float32)
# Differentiable Binarization (Liao et al., AAAI 2020, sec. 3.5): threshold, shrink back, keep confident boxes.
TEXT_THRESHOLD = 0.3
BOX_THRESHOLD = 0.5
UNCLIP_RATIO = 1.6
BOX_SIDE_MIN_PX = 3
BOXES_MAX = 200

LINE_HEIGHT_PX = 48
ORIENT_WIDTH_PX = 192
TURN_THRESHOLD = 0.9
RECOGNISE_MODEL = "package:rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"


@dataclass(frozen=True, slots=True)
class Page:
    """What later stages need to know about one image."""

    image: Pixels
    scale: tuple[float, float]
    """Image pixels per detector pixel, x and y."""
    boxes: Floats = field(default_factory=lambda: np.zeros((0, 4, 2), np.float32))
    """Corners in image pixels, [n, 4, 2], clockwise from the top left as the image stands."""
    crops: list[Pixels] = field(default_factory=list)
    turned: npt.NDArray[np.bool_] = field(default_factory=lambda: np.zeros(0, np.bool_))
    """Lines that stood on their heads, [n]."""


def prepare(work: Work) -> Work:
    """Decode and normalise one image: ``x`` [1, 3, h, w], sides multiples of 32."""
    image = _decode(work.context)
    height, width = image.shape[:2]
    shrink = min(1.0, SIDE_MAX_PX / max(height, width))
    target = (_to_32(width * shrink), _to_32(height * shrink))
    resized = image if target == (width, height) else cv2.resize(image, target)
    x = (resized.astype(np.float32) / 255 - DETECT_MEAN) / DETECT_STD
    page = Page(image, scale=(width / target[0], height / target[1]))
    return Work({"x": np.ascontiguousarray(x.transpose(2, 0, 1)[None])}, page)


def crop(work: Work) -> Work:
    """Turn the detector's map into upright crops: ``x`` [n, 3, 48, 192] for the orientation classifier."""
    page: Page = work.context
    (text_map,) = work.tensors.values()
    boxes = _reading_order(_boxes(text_map[0, 0], page))
    crops = [_cut(page.image, box) for box in boxes]
    x = np.zeros((len(crops), 3, LINE_HEIGHT_PX, ORIENT_WIDTH_PX), np.float32)
    for row, line in enumerate(crops):
        _draw_line(x[row], line)
    return Work({"x": x}, Page(page.image, page.scale, boxes, crops))


def turn(work: Work) -> Work:
    """Put lines on their feet and normalise them for the recogniser: ``x`` [n, 3, 48, width of the longest]."""
    page: Page = work.context
    (scores,) = work.tensors.values()
    turned = scores[:, 1] > TURN_THRESHOLD
    crops = [
        np.ascontiguousarray(line[::-1, ::-1]) if over else line for line, over in zip(page.crops, turned, strict=True)
    ]
    width = max((_line_width(line) for line in crops), default=LINE_HEIGHT_PX)
    x = np.zeros((len(crops), 3, LINE_HEIGHT_PX, width), np.float32)
    for row, line in enumerate(crops):
        _draw_line(x[row], line)
    return Work({"x": x}, Page(page.image, page.scale, page.boxes, crops, turned))


def read(work: Work) -> Work:
    """Decode characters: ``text`` [n] of str, ``confidence`` [n], ``box`` [n, 4, 2] in image pixels, reading order."""
    page: Page = work.context
    (likelihoods,) = work.tensors.values()
    lines = [_ctc(rows) for rows in likelihoods]
    # On a page that stood on its head the last line found is the first one written.
    order = slice(None, None, -1 if 2 * int(page.turned.sum()) > len(lines) else 1)
    text = np.array([text for text, _ in lines], object)[order]
    confidence = np.array([confidence for _, confidence in lines], np.float32)[order]
    return Work({"text": text, "confidence": confidence, "box": page.boxes[order]})


def _decode(context: Any) -> Pixels:
    if not isinstance(context, RawInput):
        raise StageInputError("this pipeline takes an image as the body of the request, not tensors.")
    if not context.content_type.startswith("image/"):
        raise StageInputError(f"content type '{context.content_type}' is not image/*.", unsupported_type=True)
    try:
        width, height = Image.open(BytesIO(context.body)).size
    except (OSError, ValueError, Image.DecompressionBombError) as error:
        raise StageInputError(f"the body is not an image this service can read ({len(context.body)} bytes).") from error
    if width * height > PIXELS_MAX:
        raise StageInputError(f"the image has {width}x{height} pixels; {PIXELS_MAX} is the most taken.")
    image = cv2.imdecode(np.frombuffer(context.body, np.uint8), cv2.IMREAD_COLOR)
    if image is None:
        raise StageInputError(f"the image is damaged or of an unknown kind ({len(context.body)} bytes).")
    return image


def _to_32(side_px: float) -> int:
    return max(32, round(side_px / 32) * 32)


def _boxes(text_map: Floats, page: Page) -> Floats:
    """Text boxes from a probability map [h, w]: contours, tightest rectangles, grown back to the text's size."""
    mask = (text_map > TEXT_THRESHOLD).astype(np.uint8)
    contours, _ = cv2.findContours(mask, cv2.RETR_LIST, cv2.CHAIN_APPROX_SIMPLE)
    found = []
    for contour in contours[:BOXES_MAX]:
        centre, (width, height), angle = cv2.minAreaRect(contour)
        if min(width, height) < BOX_SIDE_MIN_PX or _mean_inside(text_map, contour) < BOX_THRESHOLD:
            continue
        # The paper's offset for a polygon, area * ratio / perimeter, moves every side of a rectangle out by that much.
        out = width * height * UNCLIP_RATIO / (2 * (width + height))
        corners = cv2.boxPoints((centre, (width + 2 * out, height + 2 * out), angle))
        found.append(_clockwise(corners))
    if not found:
        return np.zeros((0, 4, 2), np.float32)
    boxes = np.stack(found) * np.array(page.scale, np.float32)
    height, width = page.image.shape[:2]
    return np.clip(boxes, 0, [width - 1, height - 1]).astype(np.float32)


def _mean_inside(text_map: Floats, contour: npt.NDArray[np.int32]) -> float:
    left, top, width, height = cv2.boundingRect(contour)
    inside = np.zeros((height, width), np.uint8)
    cv2.fillPoly(inside, [contour - np.array([left, top])], 1)
    return float(cv2.mean(text_map[top : top + height, left : left + width], inside)[0])


def _clockwise(corners: Floats) -> Floats:
    """Order four corners from the top left: the two leftmost by height, then the two rightmost."""
    by_x = corners[np.argsort(corners[:, 0], kind="stable")]
    left = by_x[:2][np.argsort(by_x[:2, 1], kind="stable")]
    right = by_x[2:][np.argsort(by_x[2:, 1], kind="stable")]
    return np.stack([left[0], right[0], right[1], left[1]])


def _reading_order(boxes: Floats) -> Floats:
    """Top to bottom, and left to right among boxes whose centres are within half a line of each other."""
    centres = boxes.mean(axis=1)
    heights = boxes[:, 3, 1] - boxes[:, 0, 1]
    rows: list[list[int]] = []
    for index in np.argsort(centres[:, 1], kind="stable").tolist():
        same_row = rows and centres[index, 1] - centres[rows[-1][0], 1] < heights[rows[-1][0]] / 2
        if same_row:
            rows[-1].append(index)
        else:
            rows.append([index])
    order = [index for row in rows for index in sorted(row, key=lambda index: float(centres[index, 0]))]
    return boxes[order]


def _cut(image: Pixels, box: Floats) -> Pixels:
    """Straighten one box out of the image; a box that is taller than wide is laid on its side."""
    width = max(1, round(float(max(np.linalg.norm(box[0] - box[1]), np.linalg.norm(box[3] - box[2])))))
    height = max(1, round(float(max(np.linalg.norm(box[0] - box[3]), np.linalg.norm(box[1] - box[2])))))
    upright = np.array([[0, 0], [width, 0], [width, height], [0, height]], np.float32)
    matrix = cv2.getPerspectiveTransform(box, upright)
    line = cv2.warpPerspective(image, matrix, (width, height), flags=cv2.INTER_CUBIC, borderMode=cv2.BORDER_REPLICATE)
    return np.rot90(line) if height >= 1.5 * width else line


def _line_width(line: Pixels) -> int:
    return max(1, round(line.shape[1] * LINE_HEIGHT_PX / line.shape[0]))


def _draw_line(row: Floats, line: Pixels) -> None:
    """Write a crop into ``row`` [3, 48, w] at height 48, as wide as it is or as fits, from -1 to 1."""
    width = min(_line_width(line), row.shape[2])
    resized = cv2.resize(line, (width, LINE_HEIGHT_PX))
    row[:, :, :width] = resized.transpose(2, 0, 1) / np.float32(127.5) - 1


def _ctc(likelihoods: Floats) -> tuple[str, float]:
    """Best-path decoding (Graves et al., ICML 2006): the best class of each step, repeats merged, blanks dropped.

    Args:
        likelihoods: [steps, classes]; class 0 is the blank.

    Returns:
        The text, and the mean likelihood of the characters kept; 0 for an empty text.
    """
    best = likelihoods.argmax(axis=1)
    kept = (best != 0) & np.concatenate([[True], best[1:] != best[:-1]])
    if not kept.any():
        return "", 0.0
    characters = _characters()
    text = "".join(characters[index] for index in best[kept])
    return text, float(likelihoods.max(axis=1)[kept].mean())


@cache
def _characters() -> list[str]:
    """Class number -> character: a blank, the dictionary inside the model file, and the space its makers add."""
    model = onnx.load(resolve_model(RECOGNISE_MODEL, Path(__file__).parent), load_external_data=False)
    (dictionary,) = [entry.value for entry in model.metadata_props if entry.key == "character"]
    return ["", *dictionary.split("\n"), " "]
