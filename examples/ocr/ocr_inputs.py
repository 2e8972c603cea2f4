"""Example inputs: rendered text whose truth is known, so that every engine's answers can be marked.

Nothing is stored: the same seed gives the same 32 images everywhere (Pillow's built-in typeface, no font files).
Images are in ascending order of their number of lines, because recognition costs time by the line.
"""

import io

import cv2
import numpy as np
import numpy.typing as npt
from PIL import Image, ImageDraw, ImageFont

from loadslice.spec.work import Sample

IMAGES = 32
LINES_MAX = 7
WIDTH_PX = 256
LINE_EM_MAX = 7.5
"""Longest line, in typeface sizes; longer lines would cost more recognition time than a 2-core machine has to show."""

_SUBJECTS = ("Invoice", "Order", "Parcel", "Ticket", "Meter", "Gate", "Room", "Train", "Shelf", "Batch")
_VERBS = ("paid", "sent", "due", "checked", "closed", "moved", "weighed", "signed", "open", "packed")
_PLACES = ("Berlin", "Madrid", "Warsaw", "Dublin", "Vienna", "Porto", "Zagreb", "Bergen", "Utrecht", "Ghent")


def samples(seed: int = 7) -> list[Sample]:
    """The example's inputs, fewest lines first.

    Args:
        seed: Start of every draw.

    Returns:
        32 samples ``img-00`` .. ``img-31`` of 1 to 7 lines; about a fifth upside down, half JPEG and half PNG.
    """
    draw = np.random.default_rng(seed)
    counts = np.sort(np.resize(np.arange(1, LINES_MAX + 1), IMAGES))
    return [_sample(f"img-{index:02d}", int(count), draw) for index, count in enumerate(counts)]


def assign(tokens_in: npt.NDArray[np.number]) -> list[str]:
    """Choose the image that stands for each request of a recorded trace.

    The trace is of a language model; what it lends us is its arrivals and its spread of request sizes. A request whose
    prompt is longer than a share q of all prompts gets the image at share q of ours, so long prompts become images
    with many lines, and the shape of the size distribution over time is the recorded one.

    Args:
        tokens_in: Prompt length of each request, [n].

    Returns:
        One sample name per request.
    """
    ordered = np.sort(tokens_in)
    # Equal prompts share the middle of the ranks they span.
    rank = (np.searchsorted(ordered, tokens_in, "left") + np.searchsorted(ordered, tokens_in, "right")) / 2
    index = np.minimum(rank * IMAGES // max(len(ordered), 1), IMAGES - 1).astype(int)
    return [f"img-{number:02d}" for number in index]


def score(truth: list[str], texts: list[str]) -> tuple[int, int]:
    """Count wrong characters, spaces ignored, as the edit distance of the whole text in reading order.

    Args:
        truth: Lines as drawn.
        texts: Lines as read.

    Returns:
        Characters wrong (inserted, deleted or replaced), and characters drawn.
    """
    wanted = "".join(truth).replace(" ", "")
    given = "".join(texts).replace(" ", "")
    return _edit_distance(wanted, given), len(wanted)


def _sample(name: str, lines: int, draw: np.random.Generator) -> Sample:
    size_px = int(draw.integers(19, 27))
    font = ImageFont.load_default(size_px)
    truth = [_line(draw, font) for _ in range(lines)]
    leading_px = round(size_px * 1.65)
    height_px = _next_32(leading_px * lines + 24)
    image = Image.new("RGB", (WIDTH_PX, height_px), tuple(int(shade) for shade in draw.integers(232, 256, 3)))
    pen = ImageDraw.Draw(image)
    ink = tuple(int(shade) for shade in draw.integers(0, 70, 3))
    for number, text in enumerate(truth):
        left_px = int(draw.integers(10, 24))
        pen.text((left_px, 14 + number * leading_px), text, fill=ink, font=font)
    pixels = np.asarray(image, np.float32)
    pixels = cv2.GaussianBlur(pixels, (0, 0), float(draw.uniform(0.3, 0.7)))
    pixels += draw.normal(0, float(draw.uniform(1, 5)), pixels.shape).astype(np.float32)
    if draw.random() < 0.2:
        pixels = pixels[::-1, ::-1]
    kind = "jpeg" if draw.random() < 0.5 else "png"
    buffer = io.BytesIO()
    Image.fromarray(np.clip(pixels, 0, 255).astype(np.uint8)).save(buffer, kind.upper())
    return Sample(name, f"image/{kind}", buffer.getvalue(), truth)


def _line(draw: np.random.Generator, font: ImageFont.FreeTypeFont) -> str:
    """Two to four words and figures that fit the image."""
    while True:
        words = [
            str(draw.choice(_SUBJECTS)),
            str(draw.integers(10, 9999)),
            str(draw.choice(_VERBS)),
            str(draw.choice(_PLACES)),
        ]
        text = " ".join(words[: int(draw.integers(2, 5))])
        if font.getlength(text) <= LINE_EM_MAX * font.size:
            return text


def _next_32(side_px: int) -> int:
    return -(-side_px // 32) * 32


def _edit_distance(first: str, second: str) -> int:
    """Levenshtein distance by the two-row recurrence."""
    previous = list(range(len(second) + 1))
    for row, left in enumerate(first, 1):
        current = [row]
        for column, right in enumerate(second, 1):
            current.append(min(previous[column] + 1, current[-1] + 1, previous[column - 1] + (left != right)))
        previous = current
    return previous[-1]
