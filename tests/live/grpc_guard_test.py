"""The gRPC port behind TLS and tokens, as the public `tritonclient` and the C core meet it."""

import asyncio
import contextlib
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
import numpy as np
import pytest
import trustme
from tests.live.conftest import LiveServer
from tests.live.guard_test import tokens, write_certificate
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.grpc_messages import SERVICE, messages
from loadslice.serve.listener import HANDSHAKES_MAX
from loadslice.serve.server import Server
from loadslice.serve.tls import Tls, TlsFiles
from loadslice.spec.access import Token, make

pytestmark = pytest.mark.live

ROWS = np.arange(4, dtype=np.float32).reshape(1, 4)


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority: trustme.CA, tmp_path: Path) -> TlsFiles:
    return write_certificate(authority, tmp_path)


@contextlib.contextmanager
def served(pipeline: Any, folder: Path, guard: Guard) -> Iterator[LiveServer]:
    live = LiveServer(Server(pipeline("tiny"), folder, port=0, grpc=0, guard=guard))
    try:
        live.run(live.server.start())
        yield live
        live.run(live.server.drained())
        live.check()
        live.run(live.server.stop())
        assert not live.server._grpc.connections
    finally:
        live.close()


@contextlib.contextmanager
def client(live: LiveServer, authority: trustme.CA, tmp_path: Path, **options: Any) -> Iterator[Any]:
    authority.cert_pem.write_to_path(tmp_path / "trusted.pem")
    found = triton.InferenceServerClient(
        f"127.0.0.1:{live.server.grpc_port}", ssl=True, root_certificates=str(tmp_path / "trusted.pem"), **options
    )
    try:
        yield found
    finally:
        found.close()


def bearer(text: str) -> dict[str, str]:
    """Metadata has lower-case names only."""
    return {"authorization": f"Bearer {text}"}


def asked() -> list[Any]:
    tensor = triton.InferInput("x", list(ROWS.shape), "FP32")
    tensor.set_data_from_numpy(ROWS)
    return [tensor]


def refusal(call: Any) -> tuple[str, str]:
    """Status and words."""
    with pytest.raises(InferenceServerException) as caught:
        call()
    return caught.value.status(), caught.value.message()


def test_tritonclient_infers_over_tls_with_a_token(pipeline, folder, files, authority, tmp_path) -> None:
    text, kept = make("acme", scopes=["infer"])
    metrics, measures = make("ops", scopes=["metrics"])
    guard = Guard(Access(tokens(kept, measures)), tls=Tls(files))
    with served(pipeline, folder, guard) as live, client(live, authority, tmp_path) as found:
        reply = found.infer("tiny", asked(), headers=bearer(text))
        np.testing.assert_array_equal(reply.as_numpy("z"), -2 * ROWS)
        assert found.get_model_metadata("tiny", headers=bearer(text)).name == "tiny"
        # As probes ask.
        assert found.is_server_live()
        assert found.is_server_ready()
        assert found.is_model_ready("tiny")
        for headers in (None, bearer("x"), bearer(text[:-1] + "?"), {"authorization": f"Basic {text}"}):
            for call in (
                lambda: found.infer("tiny", asked(), headers=headers),  # noqa: B023
                lambda: found.get_model_metadata("tiny", headers=headers),  # noqa: B023
                lambda: found.get_server_metadata(headers=headers),  # noqa: B023
            ):
                status, words = refusal(call)
                assert status == "StatusCode.UNAUTHENTICATED"
                assert text not in words
        assert (
            refusal(lambda: found.infer("tiny", asked(), headers=bearer(metrics)))[0] == "StatusCode.PERMISSION_DENIED"
        )


def test_an_expired_and_a_revoked_token_are_refused_and_a_rate_holds(
    pipeline, folder, files, authority, tmp_path
) -> None:
    old, expired = make("acme", scopes=["infer"], life_days=-1)
    gone, revoked = make("acme", scopes=["infer"])
    few, limited = make("acme", scopes=["infer"], rate_per_s=0.001, burst=2)
    kept = tokens(expired, _revoked(revoked), limited)
    guard = Guard(Access(kept), tls=Tls(files))
    with served(pipeline, folder, guard) as live, client(live, authority, tmp_path) as found:
        for text in (old, gone):
            assert refusal(lambda: found.infer("tiny", asked(), headers=bearer(text)))[0] == (  # noqa: B023
                "StatusCode.UNAUTHENTICATED"
            )
        for _ in range(2):
            found.infer("tiny", asked(), headers=bearer(few))
        status, _ = refusal(lambda: found.infer("tiny", asked(), headers=bearer(few)))
        assert status == "StatusCode.RESOURCE_EXHAUSTED"


def _revoked(token: Token) -> Token:
    import msgspec

    return msgspec.structs.replace(token, revoked=True)


def test_every_message_of_a_stream_needs_a_token_that_is_still_good(
    pipeline, folder, files, authority, tmp_path
) -> None:
    text, kept = make("acme", scopes=["infer"])
    access = Access(tokens(kept))
    made = messages().classes["ModelInferRequest"](model_name="tiny")
    made.inputs.add(name="x", datatype="FP32", shape=ROWS.shape)
    made.raw_input_contents.append(ROWS.tobytes())
    wire = made.SerializeToString()
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())

    async def run(port: int) -> list[str]:
        async with grpc.aio.secure_channel(f"127.0.0.1:{port}", credentials) as channel:
            stream = channel.stream_stream(f"/{SERVICE}/ModelStreamInfer")(
                metadata=[("authorization", f"Bearer {text}")]
            )
            errors = []
            for revoked in (False, True):
                if revoked:
                    access.replace(tokens(_revoked(kept)))
                await stream.write(wire)
                answer = messages().classes["ModelStreamInferResponse"].FromString(await stream.read())
                errors.append(answer.error_message)
            await stream.done_writing()
            return errors

    with served(pipeline, folder, Guard(access, tls=Tls(files))) as live:
        first, second = asyncio.run(run(live.server.grpc_port))
    assert first == ""
    assert second != ""


def test_a_client_that_does_not_trust_it_or_speaks_plainly_does_not_get_in(
    pipeline, folder, files, authority, tmp_path
) -> None:
    with served(pipeline, folder, Guard(Access(None), tls=Tls(files))) as live:
        with client(live, trustme.CA(), tmp_path) as stranger:
            assert refusal(lambda: stranger.infer("tiny", asked(), client_timeout=5))[0] in (
                "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED",
            )  # fmt: skip
        with triton.InferenceServerClient(f"127.0.0.1:{live.server.grpc_port}") as plain:
            assert refusal(lambda: plain.infer("tiny", asked(), client_timeout=5))[0] in (
                "StatusCode.UNAVAILABLE", "StatusCode.DEADLINE_EXCEEDED",
            )  # fmt: skip
        with client(live, authority, tmp_path) as found:
            assert found.is_server_live()


def test_it_speaks_http_2_over_tls(pipeline, folder, files, authority) -> None:
    context = ssl.create_default_context()
    authority.configure_trust(context)
    context.set_alpn_protocols(["h2", "http/1.1"])
    with (
        served(pipeline, folder, Guard(Access(None), tls=Tls(files))) as live,
        socket.create_connection(("127.0.0.1", live.server.grpc_port), 10) as raw,
        context.wrap_socket(raw, server_hostname="127.0.0.1") as wrapped,
    ):
        assert wrapped.selected_alpn_protocol() == "h2"
        assert wrapped.version() in ("TLSv1.2", "TLSv1.3")


def test_who_shakes_no_hand_is_no_connection_and_keeps_nobody_out(pipeline, folder, files, authority, tmp_path) -> None:
    with (
        served(pipeline, folder, Guard(Access(None), tls=Tls(files))) as live,
        contextlib.ExitStack() as stack,
        client(live, authority, tmp_path) as found,
    ):
        http_port = int(live.server.url.rpartition(":")[2])
        for port in (live.server.grpc_port, http_port):
            for _ in range(2 * HANDSHAKES_MAX):
                stack.enter_context(socket.create_connection(("127.0.0.1", port), 10))
        found.infer("tiny", asked(), client_timeout=20)
        context = ssl.create_default_context()
        authority.configure_trust(context)
        assert httpx.get(f"{live.server.url}/v2", verify=context, timeout=20).status_code == 200
        assert len(live.server._grpc.connections) == 1
        listeners = [live.server._grpc._listener, *(listener for _, listener in live.server._ports._http)]
        assert all(len(listener._setting_up) <= HANDSHAKES_MAX for listener in listeners)


def test_a_client_of_the_right_authority_gets_in_and_no_other(pipeline, folder, files, authority, tmp_path) -> None:
    clients, strangers = trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    mutual = TlsFiles(files.certificate, files.key, tmp_path / "clients.pem")
    reached = []
    with served(pipeline, folder, Guard(Access(None), tls=Tls(mutual))) as live:
        for issuer in (clients, strangers, None):
            options = {}
            if issuer is not None:
                issued = issuer.issue_cert("client@example.org")
                issued.private_key_pem.write_to_path(tmp_path / "client.key")
                issued.cert_chain_pems[0].write_to_path(tmp_path / "client.pem")
                options = {
                    "private_key": str(tmp_path / "client.key"),
                    "certificate_chain": str(tmp_path / "client.pem"),
                }
            with client(live, authority, tmp_path, **options) as found:
                try:
                    found.infer("tiny", asked(), client_timeout=20)
                    reached.append(True)
                except InferenceServerException:
                    reached.append(False)
    assert reached == [True, False, False]
