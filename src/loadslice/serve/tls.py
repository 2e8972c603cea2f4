"""TLS of the listeners: TLS 1.2 and later, certificates that can be exchanged while the server runs."""

import ssl
from dataclasses import dataclass
from pathlib import Path

from loadslice.spec.errors import InputError
from loadslice.spec.files import opened

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2; those of 1.3 are all of this kind (RFC 9325, 4.2: forward secrecy and authenticated encryption only)."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """Where certificates stand, as PEM."""

    certificate: Path
    """The server's, with its chain."""
    key: Path
    client_ca: Path | None = None
    """Who signs clients' certificates; ``None``: clients need none."""


class Tls:
    """Contexts for listeners, which ask for them anew at each connection.

    Args:
        files: Certificate and key.

    Raises:
        InputError: They cannot be read or do not belong together.
    """

    def __init__(self, files: TlsFiles) -> None:
        self._files = files
        self._http, self._grpc = self._made()

    def context(self) -> ssl.SSLContext:
        """What the files said when they were last read well."""
        return self._http

    def grpc_context(self) -> ssl.SSLContext:
        """The same for a port that speaks HTTP/2."""
        return self._grpc

    def reload(self) -> None:
        """Read the files again; connections from now on get what they say.

        Raises:
            InputError: They are not well; what was used before still is.
        """
        self._http, self._grpc = self._made()

    def _made(self) -> tuple[ssl.SSLContext, ssl.SSLContext]:
        # New ones each time: to a context authorities can be added, and never taken from it.
        return self._with_protocol("http/1.1"), self._with_protocol("h2")

    def _with_protocol(self, protocol: str) -> ssl.SSLContext:
        files = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION | ssl.OP_CIPHER_SERVER_PREFERENCE
        context.set_ciphers(CIPHERS)
        context.set_alpn_protocols([protocol])
        try:
            for path in (files.certificate, files.key):
                opened(path).close()  # OpenSSL would wait for whoever writes to a pipe
            # With a password that nobody has: OpenSSL would ask on the terminal for that of an encrypted key.
            context.load_cert_chain(files.certificate, files.key, password=_no_password)
        except (OSError, ssl.SSLError, ValueError) as error:
            raise InputError(
                f"--tls-cert {files.certificate} --tls-key {files.key}: cannot be used, {_why(error)}. "
                "Give a PEM certificate with its chain, and its PEM key without a password."
            ) from error
        if files.client_ca is not None:
            context.verify_mode = ssl.CERT_REQUIRED
            try:
                opened(files.client_ca).close()
                context.load_verify_locations(files.client_ca)
            except (OSError, ssl.SSLError) as error:
                raise InputError(f"--tls-client-ca {files.client_ca}: cannot be used, {_why(error)}.") from error
        return context


def _no_password() -> str:
    raise ValueError("the key is encrypted")


def _why(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return (error.reason or "not PEM").replace("_", " ").lower()
    if isinstance(error, OSError):
        return (error.strerror or "unreadable").lower()
    return str(error)
