"""Where alerts go beside the terminal: a file of JSON lines, a webhook, gauges that Prometheus scrapes."""

import urllib.request
from collections.abc import Callable
from http.client import HTTPException
from pathlib import Path

import msgspec
from prometheus_client import CollectorRegistry, Counter, Gauge, start_http_server

from loadslice.app.output import say
from loadslice.spec.address import web_address
from loadslice.spec.errors import InputError
from loadslice.spec.files import reason
from loadslice.spec.watch import Alert

WEBHOOK_S_MAX = 5.0

Outlet = Callable[[Alert], None]


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Alerts go where the user said and nowhere else."""

    def redirect_request(self, *_arguments: object) -> None:
        return None


def to_webhook(url: str) -> Outlet:
    """POSTs each alert as JSON; one that cannot be delivered is said on stderr and does not end the watch.

    Raises:
        InputError: Not an address.
    """
    web_address(url, "--webhook")
    opener = urllib.request.build_opener(_NoRedirects, urllib.request.ProxyHandler({}))

    def post(alert: Alert) -> None:
        request = urllib.request.Request(  # noqa: S310 - the scheme has been checked
            url, method="POST", data=msgspec.json.encode(alert), headers={"Content-Type": "application/json"}
        )
        try:
            opener.open(request, timeout=WEBHOOK_S_MAX).close()
        except (OSError, ValueError, HTTPException) as error:
            say(f"--webhook: an alert could not be delivered, {getattr(error, 'reason', error)}")

    return post


def to_lines(path: Path) -> Outlet:
    """Appends each alert to a file of JSON lines.

    Raises:
        InputError: It cannot be written.
    """

    def append(alert: Alert) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("ab") as stream:
                stream.write(msgspec.json.encode(alert) + b"\n")
        except OSError as error:
            raise InputError(f"{path}: cannot be written, {reason(error)}.") from error

    return append


class Gauges:
    """What a watch exports to Prometheus on a loopback port of its own.

    Args:
        port: 0: any free one.

    Raises:
        InputError: The port is taken.
    """

    def __init__(self, port: int) -> None:
        registry = CollectorRegistry()
        self._firing = Gauge("loadslice_watch_firing", "1 while an alert stands.", ["what", "test"], registry=registry)
        self._samples = Counter("loadslice_watch_samples", "Answers that were looked at.", registry=registry)
        self._figures = Gauge("loadslice_watch_figure", "Figures of operation.", ["figure"], registry=registry)
        try:
            self._server, _ = start_http_server(port, addr="127.0.0.1", registry=registry)
        except OSError as error:
            raise InputError(f"--metrics {port}: cannot be listened on, {reason(error)}.") from error
        self.port: int = self._server.server_port

    def tell(self, alert: Alert) -> None:
        """See `Outlet`."""
        self._firing.labels(alert.what, alert.test).set(alert.state == "firing")

    def seen(self, samples: int, figures: dict[str, float | int | None]) -> None:
        """Count samples, and show the last figures; one that is unknown is not shown."""
        self._samples.inc(samples)
        for name, value in figures.items():
            if value is None:
                self._figures.remove(name)
            else:
                self._figures.labels(name).set(value)

    def close(self) -> None:
        """Listen no more."""
        self._server.shutdown()
        self._server.server_close()


def printed(alert: Alert) -> str:
    """An alert as one line."""
    mark = "ALERT" if alert.state == "firing" else "well "
    return f"{mark} {alert.text} [{alert.test}]"
