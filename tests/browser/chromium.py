"""The browser that pages are tried in, and how it is kept from calling out."""

import shutil

import pytest

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

marks = [
    pytest.mark.skipif(BROWSER is None, reason="no chromium on this machine (Debian: apt-get install chromium)"),
    pytest.mark.live,
]

QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-extensions",
)  # fmt: skip
