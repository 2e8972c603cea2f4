"""Wiring of twins: what each emulated device knows of each model it is to run.

Backends may not look into models and the server may not look into operator tables, so it is done here, once, before
either is started: a pipeline goes in, the same pipeline comes out with a sheet per model on its emulated engines.
"""

from pathlib import Path

import msgspec

from loadslice.spec.errors import InputError
from loadslice.spec.pipeline import Engine, Pipeline, SplitEngine
from loadslice.spec.twin import TWIN, twins


def resolved(pipeline: Pipeline, folder: Path, dilate: float = 1.0, *, keeps_time: bool = True) -> Pipeline:
    """The pipeline with a sheet for each model that an emulated engine is to run; without twins it comes back as it is.

    Args:
        pipeline: Checked.
        folder: Where its file stands; device files, tables and models are found from there.
        dilate: Seconds here for one second on the device, 1 or more.
        keeps_time: Whether the devices' time is waited for; a profile wants their numbers only.

    Raises:
        InputError: No such device, a table that cannot be read, a model that cannot be opened, a device of which no
            operators are known, open shapes on a device of fixed ones, or no time known.
    """
    pipeline = _cut(pipeline, folder)
    shared = {name: one for name, one in pipeline.engines.items() if isinstance(one, SplitEngine)}
    names = twins(pipeline)
    has_twins = names or any(part.backend == TWIN for one in shared.values() for part in one.parts.values())
    if not has_twins and dilate != 1:
        raise InputError(
            "--dilate: no engine of this pipeline is emulated (backend: twin); real devices keep real time."
        )
    if dilate < 1:
        raise InputError(f"--dilate {dilate:g}: must be 1 or more; a processor cannot be made faster.")
    engines: dict[str, Engine] = dict(pipeline.engines)
    if has_twins:
        # Here, because a server of real engines does not need what looks into models.
        from loadslice.app.twin_sheets import both_emulated, emulated

        for name in names:
            engines[name] = emulated(name, pipeline, folder, dilate, keeps_time)
        for name, one in shared.items():
            engines[name] = both_emulated(name, one, pipeline, folder, dilate, keeps_time)
    return msgspec.structs.replace(pipeline, engines=engines)


def _cut(pipeline: Pipeline, folder: Path) -> Pipeline:
    """The pipeline with what its stages name of models as files."""
    parts = any(stage.from_ is not None or stage.to is not None for stage in pipeline.stages)
    if not parts and not any(isinstance(one, SplitEngine) for one in pipeline.engines.values()):
        return pipeline
    # Here for the same reason.
    from loadslice.app.slice_stages import prepared

    return prepared(pipeline, folder)
