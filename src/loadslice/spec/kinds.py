"""What a file is that was given in another one's place: by its first bytes, its stamp, or its keys."""

from typing import Any, NamedTuple

HEAD_BYTES = 16


class Kind(NamedTuple):
    """One kind of file that users write or commands leave behind."""

    words: str
    type_name: str
    """Of the struct in `spec` that it is read as; the module is not imported for it."""
    keys: frozenset[str]
    """Keys at its top that together tell it from the others."""


KINDS = tuple(
    Kind(words, type_name, frozenset(keys.split()))
    for words, type_name, keys in (
        ("a language file", "Language", "language engines"),
        ("a pipeline", "Pipeline", "stages engines"),
        ("an offers file", "Offers", "boxes engines"),
        ("a budget", "Budget", "slo"),
        ("a price list", "Prices", "currency parts"),
        ("a tokens file", "Tokens", "version tokens"),
        ("an evaluation plan", "Evaluation", "placements"),
        ("a watch plan", "WatchPlan", "signals"),
        ("a rollout plan", "RolloutPlan", "dwell_s"),
        ("a device file", "Device", "name title kind"),
        ("an operator table", "OperatorTable", "target title facts"),
        ("a portrait", "Portrait", "trace arrival waterline"),
        ("a profile (latency.json)", "LatencyTable", "entries"),
        ("a variant's manifest", "Manifest", "variant floor"),
    )
)

_MAGIC = (
    (b"PAR1", "a Parquet file"),
    (b"\x1f\x8b", "compressed by gzip"),
    (b"PK\x03\x04", "a zip archive"),
    (b"\x93NUMPY", "a NumPy array"),
    (b"SQLite format 3\0", "an SQLite file"),
    (b"%PDF", "a PDF"),
    (b"\x89PNG", "a PNG picture"),
)
_ONNX_SECOND_FIELDS = b"\x12\x1a\x22\x28\x32\x3a\x42"
"""Tags of what may follow `ir_version` in an ONNX model: names of its maker, its version, its graph, its opsets."""


def binary(head: bytes) -> str | None:
    """What a file is that holds no text; ``None``: it may be text.

    Args:
        head: Its first `HEAD_BYTES`.
    """
    for magic, words in _MAGIC:
        if head.startswith(magic):
            return words
    if head[:1] == b"\x08" and head[2:3] and head[2:3] in _ONNX_SECOND_FIELDS:
        return "an ONNX model"
    return None


MADE_BY = {
    "LatencyTable": "profile PIPELINE",
    "LanguageProfile": "profile LANGUAGE_FILE",
    "Portrait": "portrait TRACE",
    "Inspection": "inspect MODEL",
    "Squeeze": "squeeze MODEL --data DIR",
    "EvaluationReport": "evaluate E.yaml",
    "Report": "study DIR",
    "Baseline": "watch baseline URL",
}
"""Struct in `spec` -> the command that leaves such a file in its ``--out``."""


def made_by(kind: Any, folder: str) -> str | None:
    """The command that makes a file of a type in a folder; ``None``: people write it."""
    command = MADE_BY.get(_name(kind))
    return None if command is None else f"loadslice {command} --out {folder}"


def wanted(kind: Any) -> str:
    """The kind of file that is read as a type."""
    return next((one.words for one in KINDS if one.type_name == _name(kind)), "another kind of file")


def mistaken(found: Any, kind: Any) -> str | None:
    """Say what a document is that is not of a type; ``None``: it is meant to be of it, or nothing is known.

    Args:
        found: The document, as plain values.
        kind: The type that it was read as.
    """
    if not isinstance(found, dict):
        return None
    keys = {key for key in found if isinstance(key, str)}
    matching = [one for one in KINDS if one.keys <= keys]
    if any(one.type_name == _name(kind) for one in matching):
        return None
    if matching:
        what = matching[0].words
    elif isinstance(stamp := found.get("stamp"), dict) and isinstance(schema := stamp.get("schema"), str):
        what = f"a document of the schema {schema:.60}"
    else:
        return None
    return f"this is {what}; {wanted(kind)} is wanted here."


def _name(kind: Any) -> str:
    return getattr(kind, "__name__", "")
