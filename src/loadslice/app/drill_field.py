"""Where drills are held: a pipeline with its times, in virtual time or on a server of its own."""

import contextlib
import secrets
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from loadslice.app import twins
from loadslice.app.admin_client import ADMIN_TOKEN
from loadslice.app.output import say
from loadslice.app.study_server import ServerError, serving
from loadslice.evaluate import payloads
from loadslice.evaluate import replay as replaying
from loadslice.evaluate.drills.desk import Desk
from loadslice.evaluate.drills.stage import Ground, NotApplicableError, ground
from loadslice.evaluate.layers.subject import Subject, letters_of
from loadslice.profiles.measure import measure as profile
from loadslice.spec.errors import InputError
from loadslice.spec.latency import LatencyTable
from loadslice.spec.pipeline import Pipeline
from loadslice.spec.twin import twins as emulated

PROFILE_S = 4.0
TIMEOUT_S = 20.0
"""An answer that takes longer never comes."""


@dataclass(slots=True)
class Field:
    """Where drills are held."""

    path: Path
    pipeline: Pipeline
    table: LatencyTable | None
    """``None``: to be measured when the first drill needs it."""
    seed: int
    dilate: float = 1.0
    _ground: Ground | None = None

    @property
    def name(self) -> str:
        """Of the pipeline."""
        return self.pipeline.pipeline

    def ground(self) -> Ground:
        """The pipeline in virtual time, its capacity known."""
        if self._ground is None:
            if self.table is None:
                say(f"profiling {self.path} for {PROFILE_S:g} s; give --profile to use a table")
                samples = list(self.inputs().samples.values())
                quiet = twins.resolved(self.pipeline, self.path.parent, keeps_time=False)
                self.table = profile(quiet, self.path.parent, samples, seconds=PROFILE_S, source=self.path)
            self._ground = ground(self.pipeline, self.table, self.seed)
        return self._ground

    def inputs(self) -> payloads.Inputs:
        """Of the pipeline.

        Raises:
            InputError: It names none.
        """
        if self.pipeline.inputs is None:
            raise InputError(f"{self.path}: names no example inputs. Add `inputs: module:function`, or give --profile.")
        return payloads.from_function(self.pipeline.inputs, self.path.parent)


@contextlib.contextmanager
def serving_desk(field: Field, served_from: Path | None = None, more: Sequence[str] = ()) -> Iterator[Desk]:
    """A server of its own for each live drill, so that none finds what another has broken.

    Args:
        field: The pipeline.
        served_from: A model in a repository in place of the pipeline's file.
        more: Further options of `loadslice serve`.

    Raises:
        NotApplicableError: The pipeline cannot be served here.
    """
    pipeline = twins.resolved(field.pipeline, field.path.parent, field.dilate)
    inputs = field.inputs()
    secret = secrets.token_urlsafe(24)
    with tempfile.TemporaryDirectory(prefix="drill-") as name:
        try:
            with serving(
                served_from or field.path, Path(name), None, journal=False, dilate=field.dilate,
                more=("--drills", *more), secrets={ADMIN_TOKEN: secret},
            ) as served:  # fmt: skip
                where = replaying.target(served.url, allow_remote=False)
                subject = Subject(
                    field.pipeline.pipeline,
                    replaying.endpoint(where, pipeline.pipeline, tensors=inputs.are_tensors).url,
                    letters_of(inputs), {}, None, inputs.are_tensors, TIMEOUT_S, field.dilate, pipeline,
                    memory_bytes=served.memory_bytes, alive=served.is_alive,
                )  # fmt: skip
                yield Desk(subject, pipeline, secret, bool(emulated(pipeline)))
        except ServerError as error:
            raise NotApplicableError(f"it cannot be served here: {error}") from error
