"""What answers the requests of connections."""

from typing import TYPE_CHECKING, Protocol

from loadslice.serve.body import Bodies
from loadslice.serve.head import Head
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import Reply

if TYPE_CHECKING:
    from loadslice.serve.connection import Connection


class Handler(Protocol):
    """Who answers requests. Its calls come one after the other for each connection."""

    @property
    def bodies(self) -> Bodies:
        """Counts what is held."""

    def begin(self, head: Head, connection: "Connection") -> bool:
        """A head is there.

        Returns:
            Whether the body is wanted; otherwise it is thrown away.

        Raises:
            RefusalError: The request is refused whatever its body says.
        """

    def handle(self, head: Head, body: bytes | memoryview, connection: "Connection") -> None:
        """The whole request is there. Calls `Connection.send` or `Connection.reply` once, now or later.

        Raises:
            RefusalError: The request is refused.
        """

    def refused(self, refusal: RefusalError) -> Reply:
        """A request was refused: told of every one, and says it in the form of the protocol."""

    def copied(self, connection: "Connection") -> None:
        """A client takes its reply slowly: it has been copied, so that nothing it was made from need be kept."""

    def sent(self, connection: "Connection") -> None:
        """The reply has been accepted by the operating system."""

    def gone(self, connection: "Connection") -> None:
        """The client has left before it had its reply."""
