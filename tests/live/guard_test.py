"""Who gets in: tokens on every route, TLS with and without clients' certificates, administration apart."""

import asyncio
import itertools
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import aiohttp
import httpx
import msgspec
import pytest
import trustme

from loadslice.serve.access import Access
from loadslice.serve.administration import Guard
from loadslice.serve.server import Server
from loadslice.serve.serving import Serving
from loadslice.serve.tls import Tls, TlsFiles
from loadslice.spec.access import Token, Tokens, make
from loadslice.spec.access import write as write_tokens
from loadslice.spec.errors import InputError

pytestmark = pytest.mark.live

BODY = {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 4], "data": [1, 2, 3, 4]}]}
SECRET = "an administrator's secret".replace(" ", "-")


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


def tokens(*kept: Token) -> Tokens:
    return Tokens(version=1, tokens=list(kept))


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def files(authority, tmp_path) -> TlsFiles:
    return write_certificate(authority, tmp_path)


def write_certificate(authority: trustme.CA, folder: Path) -> TlsFiles:
    issued = authority.issue_cert("127.0.0.1", "localhost")
    for number, blob in enumerate(issued.cert_chain_pems):
        blob.write_to_path(folder / "server.pem", append=number > 0)
    issued.private_key_pem.write_to_path(folder / "server.key")
    authority.cert_pem.write_to_path(folder / "ca.pem")
    return TlsFiles(folder / "server.pem", folder / "server.key")


def test_without_a_credential_every_route_but_health_is_refused_and_with_one_its_scope_decides(
    pipeline, folder, serving
) -> None:
    infer, infers = make("acme", scopes=["infer"])
    metrics, measures = make("ops", scopes=["metrics"])
    admin, admins = make("ops", scopes=["admin"])
    guard = Guard(Access(tokens(infers, measures, admins)), drills=True)

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, guard=guard) as (server, client):
            paths = [*server._front.routes, "/no/such/path", "/docs", "/openapi.json", "/v2/", "/admin/x", "/%61dmin"]
            open_paths = []
            for path in paths:
                for method in ("GET", "POST", "HEAD", "PUT", "OPTIONS"):
                    async with client.request(method, path) as reply:
                        if reply.status not in (401, 405):
                            open_paths.append((method, path, reply.status))
                        else:
                            assert server.url not in await reply.text()
            assert {path for _, path, _ in open_paths} == {"/v2/health/live", "/v2/health/ready"}
            reached = {}
            for name, text in (("infer", infer), ("metrics", metrics), ("admin", admin)):
                reached[name] = []
                for path in ("/v2/models/tiny", "/metrics", "/admin/server", "/admin/engines", "/admin/drills"):
                    async with client.get(path, headers=bearer(text)) as reply:
                        assert reply.status in (200, 403)
                        if reply.status == 200:
                            reached[name].append(path)
            assert reached == {
                "infer": ["/v2/models/tiny"],
                "metrics": ["/metrics"],
                "admin": ["/admin/server", "/admin/engines", "/admin/drills"],
            }

    asyncio.run(run())


def test_the_tokens_tenant_class_and_rate_count_and_not_the_headers(pipeline, folder, serving, infer) -> None:
    text, kept = make("acme", scopes=["infer"], ceiling="sheddable", rate_per_s=0.01, burst=3)

    async def run() -> None:
        seen = []
        async with serving(pipeline("tiny"), folder, guard=Guard(Access(tokens(kept)))) as (server, client):
            record = server._front.service.record
            object.__setattr__(
                server._front.service, "record", lambda one: (seen.append((one.tenant, one.priority)), record(one))
            )
            headers = bearer(text) | {"x-loadslice-tenant": "somebody-else"}
            status, _ = await infer(client, "tiny", headers)
            assert status == 200
            status, _ = await infer(client, "tiny", headers | {"x-loadslice-priority": "critical"})
            assert status == 403
            status, _ = await infer(client, "tiny", headers)
            assert status == 200
            status, reply = await infer(client, "tiny", headers)
            assert (status, int(reply["Retry-After"])) == (429, 100)
        assert seen == [("acme", 3), ("acme", 3)]

    asyncio.run(run())


def test_what_a_token_has_used_today_outlives_a_restart(pipeline, folder, serving, infer, tmp_path) -> None:
    text, kept = make("acme", scopes=["infer"], per_day=3)
    write_tokens(tmp_path / "tokens.yaml", tokens(kept))

    async def run() -> list[int]:
        statuses = []
        for _ in range(2):
            guard = Guard(Access(tokens(kept)), tokens_file=tmp_path / "tokens.yaml")
            async with serving(pipeline("tiny"), folder, guard=guard, state=tmp_path / "s.sqlite") as (_, client):
                statuses += [(await infer(client, "tiny", bearer(text)))[0] for _ in range(2)]
        return statuses

    assert asyncio.run(run()) == [200, 200, 200, 429]


def test_administration_on_a_port_of_its_own_is_not_on_the_other(pipeline, folder, serving) -> None:
    guard = Guard(Access(None, admin_secret=SECRET), admin_port=0)

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, guard=guard) as (server, client):
            assert server.admin_url != server.url
            async with client.get("/admin/server", headers=bearer(SECRET)) as reply:
                assert reply.status == 404
            for path, status in (("/admin/server", 200), ("/v2/models/tiny", 404), ("/metrics", 404)):
                async with client.get(server.admin_url + path, headers=bearer(SECRET)) as reply:
                    assert reply.status == status
            async with client.get(server.admin_url + "/admin/server") as reply:
                assert reply.status == 401

    asyncio.run(run())


def test_a_reload_is_refused_with_the_reason_and_without_folders(pipeline, folder, serving) -> None:
    guard = Guard(Access(None, admin_secret=SECRET))

    def source() -> Serving:
        raise InputError(f"{folder}/tiny.yaml: stages[0].model: no such file.")

    async def run() -> None:
        async with serving(pipeline("tiny"), folder, guard=guard, source=source) as (server, client):
            async with client.post("/admin/reload", headers=bearer(SECRET)) as reply:
                assert reply.status == 409
                assert await reply.json() == {"error": "tiny.yaml: stages[0].model: no such file."}
            assert server.generation.number == 1
            async with client.get("/admin/drills", headers=bearer(SECRET)) as reply:
                assert reply.status == 404  # not started with drills

    asyncio.run(run())


def test_faults_by_order_end_by_themselves_or_when_told_to(pipeline, folder, serving, infer) -> None:
    guard = Guard(Access(None, admin_secret=SECRET), drills=True)
    served = msgspec.structs.replace(
        pipeline("tiny"), retry=msgspec.structs.replace(pipeline("tiny").retry, attempts=1)
    )

    async def run() -> None:
        async with serving(served, folder, guard=guard) as (_, client):

            async def order(path: str, document: dict | None = None) -> int:
                async with client.post(path, json=document, headers=bearer(SECRET)) as reply:
                    return reply.status

            async def answers() -> list[float]:
                async with client.post("/v2/models/tiny/infer", json=BODY) as reply:
                    return (await reply.json())["outputs"][0]["data"]

            assert await answers() == [-2, -4, -6, -8]
            assert await order("/admin/drills/fault", {"engine": "ort", "kind": "wrong", "for_s": 60}) == 200
            assert await answers() == pytest.approx([-2.04, -4.08, -6.12, -8.16])
            assert await order("/admin/drills/fault", {"engine": "ort", "kind": "down", "for_s": 60}) == 200
            status, _ = await infer(client, "tiny")
            assert status == 502
            assert await order("/admin/drills/clear") == 200
            for bad in (
                {"engine": "x", "kind": "down", "for_s": 1},
                {"engine": "ort", "kind": "down", "for_s": 1e9},
                {"engine": "ort", "kind": "poison", "for_s": 1},
                {"engine": "ort", "kind": "down", "for_s": 1, "id": "x"},
            ):
                assert await order("/admin/drills/fault", bad) == 409
            assert await order("/admin/drills/fault", {"engine": "ort", "kind": "odd", "for_s": 1}) == 400

    asyncio.run(run())


def test_tls_is_spoken_and_nothing_else(pipeline, folder, files, authority) -> None:
    async def run() -> None:
        server = Server(pipeline("tiny"), folder, port=0, guard=Guard(Access(None), tls=Tls(files)))
        await server.start()
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        old = ssl.create_default_context()
        authority.configure_trust(old)
        with warnings.catch_warnings(action="ignore"):  # Python itself warns of it
            old.minimum_version = old.maximum_version = ssl.TLSVersion.TLSv1_1
        old.set_ciphers("ALL:@SECLEVEL=0")
        async with aiohttp.ClientSession() as client:
            async with client.post(f"{server.url}/v2/models/tiny/infer", json=BODY, ssl=trusting) as reply:
                assert reply.status == 200
            for context in (ssl.create_default_context(), old):
                with pytest.raises(aiohttp.ClientError):
                    await client.get(f"{server.url}/v2", ssl=context)
            with pytest.raises((aiohttp.ClientError, TimeoutError)):
                await client.get(server.url.replace("https", "http") + "/v2", timeout=aiohttp.ClientTimeout(5))
        await server.stop()

    asyncio.run(run())


def test_a_client_needs_a_certificate_of_the_right_authority(pipeline, folder, files, authority, tmp_path) -> None:
    clients, strangers = trustme.CA(), trustme.CA()
    clients.cert_pem.write_to_path(tmp_path / "clients.pem")
    mutual = TlsFiles(files.certificate, files.key, tmp_path / "clients.pem")
    tls = Tls(mutual)

    async def reached(url: str) -> list[bool]:
        found = []
        for issuer in (clients, strangers, None):
            context = ssl.create_default_context()
            authority.configure_trust(context)
            if issuer is not None:
                issuer.issue_cert("client@example.org").configure_cert(context)
            async with aiohttp.ClientSession() as client:
                try:
                    async with client.get(f"{url}/v2", ssl=context) as reply:
                        found.append(reply.status == 200)
                except (aiohttp.ClientError, ConnectionError):
                    found.append(False)
        return found

    async def run() -> tuple[list[bool], list[bool]]:
        server = Server(pipeline("tiny"), folder, port=0, guard=Guard(Access(None), tls=tls))
        await server.start()
        before = await reached(server.url)
        strangers.cert_pem.write_to_path(tmp_path / "clients.pem")
        tls.reload()
        after = await reached(server.url)
        await server.stop()
        return before, after

    before, after = asyncio.run(run())
    assert before == [True, False, False]
    assert after == [False, True, False], "an authority that was taken out is trusted no more"


def test_certificates_that_cannot_be_used_are_one_line_and_leave_the_old_in_force(files, authority, tmp_path) -> None:
    tls = Tls(files)
    other = tmp_path / "other"
    other.mkdir()
    files.key.write_bytes(write_certificate(authority, other).key.read_bytes())
    with pytest.raises(InputError, match="cannot be used") as refused:
        tls.reload()
    assert "\n" not in str(refused.value)
    for broken in (b"", b"-----BEGIN CERTIFICATE-----\nAA\n-----END CERTIFICATE-----\n"):
        files.certificate.write_bytes(broken)
        with pytest.raises(InputError, match="cannot be used"):
            Tls(files)
    write_certificate(authority, tmp_path)
    with pytest.raises(InputError, match="--tls-client-ca"):
        Tls(TlsFiles(files.certificate, files.key, tmp_path / "absent.pem"))
    os.mkfifo(tmp_path / "pipe")
    pipe = tmp_path / "pipe"
    for wrong in ((pipe, files.key), (files.certificate, pipe), (files.certificate, files.key, pipe)):
        with pytest.raises(InputError, match="a pipe or a device"):
            Tls(TlsFiles(*wrong))


def command(*arguments: object) -> list[str]:
    return [sys.executable, "-m", "loadslice", "serve", *map(str, arguments)]


@pytest.fixture
def served(folder, tmp_path, files) -> Iterator[tuple[subprocess.Popen, dict, Path]]:
    """The command with tokens and TLS, ready."""
    kept = tmp_path / "tokens.yaml"
    write_tokens(kept, tokens())
    arguments = ["--http", 0, "--json", "--tokens", kept, "--tls-cert", files.certificate, "--tls-key", files.key]
    with subprocess.Popen(
        command(folder / "tiny.yaml", *arguments), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            text = ""
            while not text.endswith("}\n") or text.count("{") != text.count("}"):
                text += process.stdout.readline()
            yield process, json.loads(text), kept
        finally:
            process.kill()


def test_a_hangup_brings_new_tokens_and_certificates_into_force(served, authority, tmp_path) -> None:
    process, ready, kept = served
    context = ssl.create_default_context()
    authority.configure_trust(context)
    text, token = make("acme", scopes=["infer"])
    address = httpx.URL(ready["url"])

    def serial() -> int:
        with (
            socket.create_connection((address.host, address.port)) as raw,
            context.wrap_socket(raw, server_hostname=address.host) as secure,
        ):
            return int(secure.getpeercert()["serialNumber"], 16)

    before = serial()
    with httpx.Client(base_url=ready["url"], verify=context, headers=bearer(text), timeout=30) as client:
        assert client.get("/v2").status_code == 401
        write_tokens(kept, tokens(token))
        write_certificate(authority, tmp_path)
        process.send_signal(signal.SIGHUP)
        reloaded = (line.strip().rpartition(": ")[2] for line in process.stderr if ": reloaded" in line)
        assert list(itertools.islice(reloaded, 3)) == [
            "reloaded tokens",
            "reloaded certificates",
            "reloaded what is served",
        ]
        assert client.get("/v2").status_code == 200
        assert client.post("/v2/models/tiny/infer", json=BODY).status_code == 200
    assert serial() != before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--host", "0.0.0.0"], "others reach this address"),
        (["--host", "::", "--tokens", "TOKENS"], "--tls-cert and --tls-key"),
        (["--tls-cert", "a.pem"], "go together"),
        (["--tls-client-ca", "a.pem"], "needs both"),
        (["--tls-cert", "absent.pem", "--tls-key", "absent.key"], "cannot be used"),
        (["--tokens", "absent.yaml"], "absent.yaml"),
    ],
)
def test_what_would_leave_it_open_is_refused_before_anything_is_loaded(folder, tmp_path, arguments, words) -> None:
    write_tokens(tmp_path / "tokens.yaml", tokens())
    given = [str(tmp_path / "tokens.yaml") if one == "TOKENS" else one for one in arguments]
    done = subprocess.run(
        command(folder / "tiny.yaml", "--http", 0, *given), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 2
    assert words in done.stderr
    assert "Traceback" not in done.stderr
