"""Draws plates of brushed metal with pits and chips whose places are known, and marks answers.

Numbers alone make the images, no photographs: the same seed draws the same plates on any machine.
"""

import io

import numpy as np
import numpy.typing as npt
from PIL import Image

from loadslice.spec.work import Sample

KINDS = ("pit", "chip")
"""Dark and round; bright and square."""
PLATES = 24
SIDES_PX = (352, 440, 528)
FAULT_PX = (14, 28)
"""Smallest and largest fault, in pixels of the network's input."""
INPUT_PX = 352
MATCH_PX = 14
"""How far from a fault, in pixels of the network's input, an answer may lie and still mean it."""

Pixels = npt.NDArray[np.uint8]
Faults = list[tuple[str, float, float, float]]
"""Kind, centre x and y, and size, as shares of the plate's side."""


def samples() -> list[Sample]:
    """The plates, from those without a fault to those with most; truth is one line of text per fault."""
    found = []
    for number in range(PLATES):
        pixels, faults = plate(np.random.default_rng(number), number * 6 // PLATES, SIDES_PX[number % len(SIDES_PX)])
        body = io.BytesIO()
        Image.fromarray(pixels).save(body, "PNG", compress_level=6)
        truth = [f"{kind} {x:.3f} {y:.3f}" for kind, x, y, _ in faults]
        found.append(Sample(f"plate-{number:02d}", "image/png", body.getvalue(), truth))
    return found


def assign(tokens_in: npt.NDArray[np.number]) -> list[str]:
    """The plate for each request: by the rank of its prompt's length among all, longest prompt to most faults."""
    rank = np.argsort(np.argsort(tokens_in, kind="stable"), kind="stable")
    return [f"plate-{number * PLATES // len(tokens_in):02d}" for number in rank.tolist()]


def plate(rng: np.random.Generator, faults: int, side_px: int = INPUT_PX) -> tuple[Pixels, Faults]:
    """One plate, [side, side, 3], with so many faults that do not touch."""
    across = np.linspace(0, 1, side_px)
    light = 110 + 60 * rng.random() + 30 * np.outer(across, rng.uniform(-1, 1, 1) + 0 * across)
    brushed = rng.normal(0, 6, (side_px, 1)) + rng.normal(0, 3, (side_px, side_px))
    grey = light + brushed
    placed: Faults = []
    while len(placed) < faults:
        x, y = rng.uniform(0.06, 0.94, 2)
        size = rng.uniform(*FAULT_PX) / INPUT_PX
        if all(np.hypot(x - a, y - b) > 0.12 for _, a, b, _ in placed):
            kind = KINDS[int(rng.integers(2))]
            _draw(grey, kind, x, y, size, rng.uniform(50, 90))
            placed.append((kind, float(x), float(y), float(size)))
    tint = grey[:, :, None] * np.array([1.0, 0.99, 0.96])
    return np.clip(tint, 0, 255).astype(np.uint8), placed


def _draw(grey: npt.NDArray[np.float64], kind: str, x: float, y: float, size: float, depth: float) -> None:
    side_px = len(grey)
    places = (np.arange(side_px) + 0.5) / side_px
    across, down = np.abs(places - x)[None, :], np.abs(places - y)[:, None]
    if kind == "pit":
        inside = np.clip((size / 2 - np.hypot(across, down)) * side_px / 2, 0, 1)
        grey -= depth * inside
    else:
        inside = np.clip((size / 2 - np.maximum(across, down)) * side_px / 2, 0, 1)
        grey += depth * inside


def score(truth: list[str], texts: list[str]) -> tuple[int, int]:
    """Faults missed, found of the wrong kind or made up, and faults there are (at least one, so that shares exist)."""
    left = [text.split() for text in texts]
    wrong = 0
    for line in truth:
        kind, x, y = line.split()
        near = min(left, key=lambda one: _apart_px(one, x, y), default=None)
        if near is None or _apart_px(near, x, y) > MATCH_PX:
            wrong += 1
        else:
            left.remove(near)
            wrong += near[0] != kind
    return wrong + len(left), max(1, len(truth))


def _apart_px(found: list[str], x: str, y: str) -> float:
    return float(np.hypot(float(found[1]) - float(x), float(found[2]) - float(y)) * INPUT_PX)
