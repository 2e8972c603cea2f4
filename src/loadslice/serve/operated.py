"""A server as its operator sees it: administration and consoles ask it these things and nothing else."""

from typing import Protocol

from loadslice.serve.generation import Generation
from loadslice.serve.rollout import Rollout
from loadslice.spec.outcome import Outcome


class Operated(Protocol):
    """See the module."""

    @property
    def generation(self) -> Generation:
        """The one that takes what arrives."""

    @property
    def is_retiring(self) -> bool:
        """Whether a generation that has been replaced is still there."""

    @property
    def outcomes(self) -> dict[Outcome, int]:
        """Requests by how they ended, since the server was started."""

    @property
    def rollout(self) -> Rollout | None:
        """``None``: without a state file there is none."""

    async def reload(self) -> Generation:
        """Serve what the source says now.

        Raises:
            InputError: It cannot be served; the old goes on serving.
        """
