"""What `loadslice serve` serves: a pipeline file, or the current version of a model in a repository."""

from pathlib import Path

from loadslice.app import repository, twins
from loadslice.app.output import say
from loadslice.policy.columns import CANARY
from loadslice.serve.golden import Golden
from loadslice.serve.patience import Step
from loadslice.serve.rollout_versions import side_by_side
from loadslice.serve.serving import Serving
from loadslice.serve.stages import LoadedStage
from loadslice.spec import latency as latencies
from loadslice.spec import pipeline as pipelines
from loadslice.spec.errors import InputError
from loadslice.spec.files import resolved
from loadslice.spec.repository import GOLDEN_FILE, PIPELINE_FILE, Model, find_model


class Source:
    """Reads what is to be served, at the start and at every reload.

    Args:
        path: A pipeline file, a model's folder in a repository, or a repository that holds one model.
        profile: Latency table.
        dilate: Seconds here for one on emulated devices.
        allow_code: Whether versions of a repository may bring Python stages.

    Raises:
        InputError: A folder that is no repository.
    """

    def __init__(self, path: Path, *, profile: Path | None, dilate: float, allow_code: bool) -> None:
        self.model: Model | None = find_model(path)
        """``None``: a pipeline file."""
        self._path = path
        self._profile = profile
        self._dilate = dilate
        self._allow_code = allow_code

    def now(self) -> Serving:
        """What is to be served now.

        Raises:
            InputError: It cannot be read, or is not what was added.
        """
        latency = None if self._profile is None else latencies.load(self._profile)
        if self.model is None:
            folder = resolved(self._path).parent
            return Serving(twins.resolved(pipelines.load(self._path), folder, self._dilate), folder, latency)
        current = self.model.current()
        if current is None:
            raise InputError(f"{self.model.folder}: no version serves yet. Choose one with `loadslice model use`.")
        return self.version(current.version)

    def version(self, version: str) -> Serving:
        """One version of the repository.

        Raises:
            InputError: It is not what was added.
        """
        assert self.model is not None
        latency = None if self._profile is None else latencies.load(self._profile)
        return repository.serving(
            self.model, version, allow_code=self._allow_code, dilate=self._dilate, latency=latency
        )

    def first(self) -> Serving:
        """What to start with: where the current version is not what was added, the last one before it that is.

        A server that restarts into a damaged version would be down; it says which one it serves instead, and why.

        Raises:
            InputError: Nothing that was ever current can be served.
        """
        try:
            return self.now()
        except InputError as fault:
            current = None if self.model is None else self.model.current()
            for version in reversed([] if current is None else current.previous):
                try:
                    serving = self.version(version)
                except InputError:
                    continue
                say(f"version {version} is served, not the current one: {fault}")
                return serving
            raise

    def beside(self, version: str) -> Serving:
        """See `rollout.Versions.beside`."""
        assert self.model is not None
        current = self.model.current()
        assert current is not None, "a server that runs serves one"
        stable, candidate = self.version(current.version), self.version(version)
        manifests = [self.model.manifest(name) for name in (current.version, version)]

        def same(suffixes: tuple[str, ...]) -> bool:
            first, second = (
                {name: file for name, file in one.files.items() if name.endswith(suffixes)} for one in manifests
            )
            return first == second

        def probation(stages: list[LoadedStage], step: Step) -> None:
            assert stable.probation is not None
            stable.probation(stages, step)
            Golden(candidate.folder / GOLDEN_FILE).probation(stages, step, CANARY)

        paired = side_by_side(
            pipelines.load(stable.folder / PIPELINE_FILE),
            stable.folder,
            pipelines.load(candidate.folder / PIPELINE_FILE),
            candidate.folder,
            same_data=same((".data", ".bin", ".safetensors")),
            same_code=same((".py",)),
        )
        return Serving(
            twins.resolved(paired, stable.folder, self._dilate),
            stable.folder,
            stable.latency,
            version=stable.version,
            probation=probation,
        )

    def adopt(self, version: str) -> None:
        """See `rollout.Versions.adopt`."""
        assert self.model is not None
        self.model.use(version)

    def revert(self) -> None:
        """See `rollout.Versions.revert`."""
        assert self.model is not None
        self.model.roll_back()

    @property
    def state_file(self) -> Path:
        """Where a server on this remembers rollouts and quotas, unless told otherwise."""
        if self.model is not None:
            return self.model.state_file
        return resolved(self._path).parent / ".loadslice" / f"{self._path.stem}.sqlite"
