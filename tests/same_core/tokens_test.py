"""The token desk gives the same decisions in any process, compiled and interpreted."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import loadslice

PROGRAM = """
import numpy as np, polars as pl
from loadslice.sim.language import run_language, summarise
from loadslice.spec.language import Language, LanguageEngine, Link, StepCost
cost = StepCost(step_ms=10, token_us=1000, row_us=1000, relative_sd=0.1)
both = LanguageEngine(backend="none", cost=cost, chunk=64)
alone = LanguageEngine(backend="none", roles=("prefill",), seats=1, step_tokens=4096, cost=cost)
language = Language(version=1, language="x", model="none", engines={"decode": both, "prefill": alone},
                    links=[Link(from_="prefill", to="decode")], context=4096)
rng = np.random.default_rng(3)
trace = pl.DataFrame({"arrival_s": np.cumsum(rng.exponential(0.2, 60)), "tokens_in": rng.integers(1, 500, 60),
                      "tokens_out": rng.integers(1, 30, 60)})
print(summarise(run_language(trace, language, seed=7), "t").journal_sha256)
"""


@pytest.mark.parametrize("hash_seed", ["0", "12345"])
def test_the_same_seed_gives_the_same_decisions_in_any_process_compiled_or_not(hash_seed: str) -> None:
    found = set()
    for disable in ("0", "1"):
        source = str(Path(loadslice.__file__).parent.parent)
        environment = {"NUMBA_DISABLE_JIT": disable, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": source}
        done = subprocess.run(
            [sys.executable, "-c", PROGRAM],
            capture_output=True,
            text=True,
            check=True,
            timeout=200,
            env={**os.environ, **environment},
        )
        found.add(done.stdout.strip())
    assert len(found) == 1
