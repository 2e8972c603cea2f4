"""A diagnosis: symptoms that were found, each with its evidence, cause and remedy; and what was looked at."""

from typing import Literal

import msgspec

from loadslice.spec.files import Stamp

SCHEMA = "diagnosis/1"

Confidence = Literal["high", "medium", "low"]
"""Of the cause. high: it is itself measured. medium: the symptom is measured, and of the causes known here this one
alone fits. low: the symptom is measured, and more than one cause fits."""

DiagnosisBasis = Literal["measured", "simulated", "emulated", "modelled"]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One symptom."""

    rule: str
    symptom: str
    evidence: str
    """Figures with their units, and where they come from."""
    cause: str
    remedy: str
    """What to do, with the command where there is one."""
    confidence: Confidence
    basis: DiagnosisBasis
    figures: dict[str, float | int | str | None] = {}


class LookedAt(msgspec.Struct, frozen=True, kw_only=True):
    """One rule, and whether it could be asked."""

    rule: str
    looked: bool
    formula: str
    """When it fires."""
    why: str | None = None
    """What was missing, where it could not be asked."""


class Diagnosis(msgspec.Struct, frozen=True, kw_only=True):
    """``diagnosis.json``."""

    source: str
    kind: Literal["server", "journal", "folder"]
    findings: list[Finding]
    looked_at: list[LookedAt]
    read: list[str]
    """Files and addresses that were read."""
    stamp: Stamp | None = None
