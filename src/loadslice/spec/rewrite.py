"""What `rewrite` did to a model, and the proof that it still computes the same."""

import msgspec


class Proof(msgspec.Struct, frozen=True, kw_only=True):
    """Both models on the same random inputs."""

    max_abs_diff: float
    max_abs_output: float
    relative: float | None
    """``max_abs_diff`` over ``max_abs_output``; ``None`` when every output was 0, and still is."""
    runs: int
    seed: int
    runtime: str


class RewriteStep(msgspec.Struct, frozen=True, kw_only=True):
    """One rewrite of the sequence."""

    rewrite: str
    changes: int
    nodes_before: int
    nodes_after: int
    tolerance: float
    proof: Proof | None
    """Against the model before this step; ``None`` with --no-proof."""


class RewriteReport(msgspec.Struct, frozen=True, kw_only=True):
    """The document `loadslice rewrite --json` prints."""

    model: str
    sha256: str
    out: str
    out_sha256: str
    steps: list[RewriteStep]
