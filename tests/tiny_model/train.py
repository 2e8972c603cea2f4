"""Trains the tiny model and writes ``tiny.gguf``: ``python tests/tiny_model/train.py``, some ten seconds of a core.

Everything comes from one seed; products in another order (another BLAS, another number of threads) round otherwise, so
bytes may differ between machines, what the model can do does not.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from gguf_file import write
from language import TOKENS, batches
from network import Sizes, Weights, as_filed, fresh, loss_and_slopes

SEED = 11
STAGES = ((600, 10, 56, 8e-3), (36, 2, 448, 2e-3))
"""Steps, rows, length, rate at the beginning: short texts first, then some as long as tests have them."""
DECAY, FIRST, SECOND = 0.05, 0.9, 0.98
STEEPEST = 1.0


def train(weights: Weights, sizes: Sizes, draws: np.random.Generator) -> Iterator[None]:
    """Change weights in place, stage by stage: AdamW, each stage's rate falling to nothing."""
    means = {name: (np.zeros_like(one), np.zeros_like(one)) for name, one in weights.items()}
    number, began = 0, time.perf_counter()
    for steps, rows, length, rate in STAGES:
        texts = batches(draws, rows, length)
        for step in range(steps):
            number += 1
            now = rate * min(1.0, (step + 1) / 60) * 0.5 * (1 + np.cos(np.pi * step / steps))
            loss, right, slopes = loss_and_slopes(as_filed(weights), sizes, *next(texts))
            steep = np.sqrt(sum(float((one * one).sum()) for one in slopes.values()))
            for name, weight in weights.items():
                slope = slopes[name] * min(1.0, STEEPEST / steep)
                mean, square = means[name]
                mean += (1 - FIRST) * (slope - mean)
                square += (1 - SECOND) * (slope * slope - square)
                grown = (mean / (1 - FIRST**number)) / (np.sqrt(square / (1 - SECOND**number)) + 1e-8)
                weight -= np.float32(now) * (grown + (DECAY if weight.ndim == 2 else 0) * weight).astype(np.float32)
            if step % 50 == 0 or step == steps - 1:
                taken_s = time.perf_counter() - began
                print(f"{number} ({length} tokens): loss {loss:.4f}, right {right:.4f}, {taken_s:.0f} s", flush=True)
        yield


def main() -> None:
    """Train and write."""
    sizes, draws = Sizes(len(TOKENS)), np.random.default_rng(SEED)
    weights = fresh(sizes, draws)
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent / "tiny.gguf"
    for _ in train(weights, sizes, draws):
        write(path, weights, sizes)


if __name__ == "__main__":
    main()
