"""From proofs to variants: words for each candidate, and the files of those that ship."""

import shutil
from pathlib import Path
from typing import Any

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.files import Stamp, decode_json, encode_json, replacing, sha256_file, stamp, write_bytes
from loadslice.spec.variant import (
    Calibration,
    EnvironmentLock,
    InputSets,
    Manifest,
    MetricFigure,
    Throughput,
    Timing,
    Variant,
    sha256_files,
)
from loadslice.variants import accelerators
from loadslice.variants.bench import Artefact, Failure, Proof, Workbench
from loadslice.variants.order import Order

MANIFEST_SCHEMA = "variant/1"
TOOLS = ("onnxruntime", "openvino", "nncf", "onnx", "onnxslim", "onnx-ir", "numpy")


class Keeper:
    """Turns proofs into variants, and keeps the files of those that ship."""

    def __init__(
        self, bench: Workbench, order: Order, calibration: Calibration | None, sets: InputSets, lock: EnvironmentLock
    ) -> None:
        self._bench, self._order, self._calibration = bench, order, calibration
        self._sets, self._lock = sets, lock

    def clear(self) -> None:
        """Remove what an earlier squeeze kept for these targets: a variant must not outlive the verdict on it."""
        for target in self._order.targets:
            for path in (self._order.out / target).glob("*.json"):
                try:
                    files = decode_json(path, Manifest).variant.files
                except InputError:
                    continue  # a recipe, or something of the user's
                for name in files:
                    if Path(name).name == name:
                        (path.parent / name).unlink(missing_ok=True)
                path.unlink()

    def stamp(self, schema: str) -> Stamp:
        """Of every file written."""
        return stamp(schema, inputs={"model": self._order.source}, seed=self._order.seed, tools=TOOLS)

    def measured(
        self,
        proof: Proof,
        timings: list[Timing],
        flow: list[Throughput],
        winners: dict[str, Proof],
        speed: dict[str, float],
    ) -> Variant:
        """A proof as a variant; the winner of its target ships when it meets the floor again and is fast enough."""
        best = timings[0]
        winner = winners.get(proof.artefact.target)
        passes = self._bench.judging.passes(proof.judged)
        shipped = winner is proof and passes and best.speedup_vs_untuned > 1.0
        variant = Variant(
            name=f"{self._order.source.stem}-{proof.name}",
            target=proof.artefact.target,
            path=None,
            sha256=None,
            engine=best.engine,
            scheme=proof.artefact.scheme,
            speedup_vs_untuned=best.speedup_vs_untuned,
            metric=self._figure(proof.judged.metric, proof.chosen.metric),
            sqnr_db=proof.judged.sqnr_db,
            kept_layers=list(proof.artefact.kept),
            shipped=shipped,
            meets_floor=passes,
            why=self._why(proof, winner, best, speed),
            timings=timings,
            throughput=flow,
            bytes_on_disk=sum(path.stat().st_size for path in proof.artefact.files),
        )
        return self._keep(variant, proof.artefact, None) if shipped else variant

    def unproven(self, artefact: Artefact, recipe: dict[str, Any] | None) -> Variant:
        """Built for a device that is not here."""
        mark, sqnr, said = accelerators.judged_on_cpu(self._bench, artefact)
        checked = said if mark is None else f"{mark:.4f} ({said}, ONNX Runtime on the processor)"
        judging = self._bench.judging
        name = said.split()[0] if mark is not None else judging.judge.name
        own = name == judging.judge.name
        variant = Variant(
            name=f"{self._order.source.stem}-{artefact.name}",
            target=artefact.target,
            path=None,
            sha256=None,
            engine=recipe["engine"] if recipe else None,
            scheme=artefact.scheme,
            speedup_vs_untuned=None,
            metric=MetricFigure(
                name=name,
                source=judging.source_mark if own else 1.0,
                variant=mark,
                labelled=own and judging.judge.labelled,
                inputs=len(judging),
            ),
            sqnr_db=sqnr,
            shipped=False,
            why=f"unverified: no such device here. Its numbers: {checked}.",
            bytes_on_disk=sum(path.stat().st_size for path in artefact.files),
        )
        return self._keep(variant, artefact, recipe)

    def failed(self, failure: Failure) -> Variant:
        """What could not be built or run."""
        return Variant(
            name=f"{self._order.source.stem}-{failure.name}",
            target=failure.target,
            path=None,
            sha256=None,
            engine=None,
            scheme=failure.scheme,
            speedup_vs_untuned=None,
            metric=self._figure(None, None),
            sqnr_db=None,
            shipped=False,
            why=failure.why,
        )

    def _figure(self, mark: float | None, on_choice: float | None) -> MetricFigure:
        judging = self._bench.judging
        return MetricFigure(
            name=judging.judge.name, source=judging.source_mark, variant=mark, labelled=judging.judge.labelled,
            inputs=len(judging), on_choice=on_choice,
        )  # fmt: skip

    def _why(self, proof: Proof, winner: Proof | None, best: Timing, speed: dict[str, float]) -> str:
        floor, marks = self._bench.judging.floor, proof.judged
        if not self._bench.judging.passes(marks):
            chosen = "chosen by other inputs, but on those that judge " if winner is proof else ""
            return f"{chosen}{floor.metric} {marks.metric:.4f} is below the floor {floor}."
        if winner is not proof and not self._bench.choosing.passes(proof.chosen):
            least = self._bench.choosing.floor
            return (
                f"not chosen: {least.metric} {proof.chosen.metric:.4f} is below the floor {least} on the inputs to "
                "choose by; on those that judge it meets it."
            )
        assert winner is not None
        if winner is not proof:
            theirs, own = speed[winner.name], speed[proof.name]
            return (
                f"meets the floor; {winner.name} was faster or better where all were timed alike, before its threads "
                f"were tuned ({theirs:.2f}x against {own:.2f}x)."
            )
        if best.speedup_vs_untuned <= 1.0:
            return f"meets the floor, but is not faster than the untuned model ({best.speedup_vs_untuned:.2f}x)."
        if not self._bench.choosing.passes(proof.chosen):
            return f"meets the floor {floor}; the closest of those that missed it by one answer where all are chosen."
        return f"fastest {proof.artefact.target} that meets the floor {floor}."

    def _keep(self, variant: Variant, artefact: Artefact, recipe: dict[str, Any] | None) -> Variant:
        """Write the artefact, its recipe and its manifest into a folder named after the target; the manifest last."""
        folder = self._order.out / variant.target
        manifest = folder / (f"{variant.name}.json" if variant.target == "npu-int8" else "manifest.json")
        kept = []
        for path in artefact.files:
            target = folder / f"{variant.name}{path.suffix}"
            with replacing(target) as temporary:
                shutil.copyfile(path, temporary)
            kept.append(target)
        if recipe is not None:
            write_bytes(folder / "recipe.json", encode_json(recipe))
        variant = msgspec.structs.replace(
            variant,
            path=str(kept[0]),
            sha256=sha256_files(kept),
            files={path.name: sha256_file(path) for path in kept},
            recipe=str(folder / "recipe.json") if recipe is not None else None,
        )
        document = Manifest(
            variant=variant,
            source=str(self._order.source),
            source_sha256=sha256_file(self._order.source),
            floor=str(self._bench.judging.floor),
            calibration_sha256=self._calibration.sha256 if self._calibration else None,
            calibration_inputs=len(self._calibration.inputs) if self._calibration else None,
            inputs=self._sets,
            environment=self._lock,
            stamp=self.stamp(MANIFEST_SCHEMA),
        )
        write_bytes(manifest, encode_json(document))
        return variant
