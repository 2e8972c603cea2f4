"""What a watch and a diagnosis ask of a running server."""

import os
import time
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

import msgspec

from loadslice.app import admin_client
from loadslice.evaluate import scrape
from loadslice.evaluate.scrape import Scrape
from loadslice.spec import validation
from loadslice.spec.address import web_address
from loadslice.spec.errors import InputError
from loadslice.spec.watch import Samples, check_plan

TEXT_BYTES_MAX = 16 << 20
TIMEOUT_S = 10.0


def metrics(url: str) -> Scrape:
    """One scrape of a server.

    Raises:
        InputError: It cannot be reached, or what it gives is no exposition.
    """
    web_address(url, "URL")
    place = url.rstrip("/") + "/metrics"
    request = urllib.request.Request(place)  # noqa: S310 - the scheme has been checked
    if secret := os.environ.get(admin_client.ADMIN_TOKEN):
        request.add_header("Authorization", f"Bearer {secret}")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as reply:
            text = reply.read(TEXT_BYTES_MAX).decode()
        return scrape.read(text, time.monotonic())
    except urllib.error.HTTPError as error:
        with error:
            raise InputError(f"{place:.200}: refused with {error.code}; is it a loadslice server?") from error
    except (OSError, ValueError, HTTPException) as error:
        raise InputError(f"{place:.200}: cannot be read, {getattr(error, 'reason', error)}.") from error


def samples(admin_url: str, after: int) -> Samples:
    """Samples after one.

    Raises:
        InputError: The server cannot be reached, or takes none.
    """
    status, answer = admin_client.ask(admin_url, "GET", f"/admin/watch?after={after}", timeout_s=TIMEOUT_S)
    if status == 404:
        raise InputError(f"{admin_url:.200}: takes no samples. Start it with `loadslice serve P --watch watch.yaml`.")
    if status >= 400:
        words = answer.get("error", status) if isinstance(answer, dict) else status
        raise InputError(f"{admin_url:.200}/admin/watch: refused with {status}: {words}")
    try:
        found = msgspec.convert(answer, type=Samples)
    except msgspec.ValidationError as error:
        raise InputError(
            f"{admin_url:.200}/admin/watch: not samples: {validation.told(str(error), answer, Samples)}."
        ) from error
    check_plan(found.plan, f"{admin_url}: plan")
    return found


def rollout(admin_url: str) -> dict[str, Any] | None:
    """What the rollout says; ``None``: this server has none."""
    status, answer = admin_client.ask(admin_url, "GET", "/admin/rollout", timeout_s=TIMEOUT_S)
    return answer if status == 200 and isinstance(answer, dict) else None


def engines(admin_url: str) -> dict[str, dict[str, Any]]:
    """Backend, device and slots of every engine, by name; none where the administration does not say."""
    status, answer = admin_client.ask(admin_url, "GET", "/admin/engines", timeout_s=TIMEOUT_S)
    return {one["name"]: one for one in answer["engines"]} if status == 200 else {}


def post_metric(admin_url: str, name: str, means: dict[str, float]) -> bool:
    """Tell the rollout a metric; false where its plan does not name it, or none runs."""
    document = {"name": name, "stable": means["stable"], "canary": means["canary"]}
    status, _ = admin_client.ask(admin_url, "POST", "/admin/rollout/metric", document, timeout_s=TIMEOUT_S)
    return status == 200


def is_here(url: str) -> bool:
    """Whether a server runs on this machine, so that its sensors are ours."""
    host = web_address(url, "URL").hostname or ""
    return host == "localhost" or host == "::1" or host.startswith("127.")
