"""The console's page: one document with its styles and scripts inside, and the policy that lets nothing else run."""

import base64
import hashlib
from pathlib import Path

from loadslice.serve.reply import Reply

FOLDER = Path(__file__).parent
STYLES = ("vendor/uPlot.min.css", "console.css")
SCRIPTS = ("vendor/uPlot.iife.min.js", "dom.js", "charts.js", "panels.js", "requests.js", "console.js")
"""In the order in which they run; what one declares at its top the later ones see."""


def reply() -> Reply:
    """The page, the same for everybody, with its headers."""
    styles, scripts = [_inside(name) for name in STYLES], [_inside(name) for name in SCRIPTS]
    page = (FOLDER / "console.html").read_text(encoding="utf-8")
    page = page.replace("<!-- styles -->", "".join(f"<style>{one}</style>\n" for one in styles))
    page = page.replace("<!-- scripts -->", "".join(f"<script>{one}</script>\n" for one in scripts))
    headers = (
        ("Content-Security-Policy", policy(styles, scripts)),
        ("X-Content-Type-Options", "nosniff"),
        ("Referrer-Policy", "no-referrer"),
        ("Cross-Origin-Opener-Policy", "same-origin"),
        ("Cross-Origin-Resource-Policy", "same-origin"),
        ("Cache-Control", "no-cache"),
    )
    return Reply(200, page.encode(), "text/html; charset=utf-8", headers)


def policy(styles: list[str], scripts: list[str]) -> str:
    """What a browser may do with the page: run and apply what is in it, and ask the server it came from."""
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(map(_hash, scripts))}",
            f"style-src {' '.join(map(_hash, styles))}",
            "connect-src 'self'",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
            "frame-ancestors 'none'",
        )
    )


def _inside(name: str) -> str:
    text = (FOLDER / name).read_text(encoding="utf-8")
    assert "</script" not in text, f"{name} would end the element that holds it"
    assert "</style" not in text, f"{name} would end the element that holds it"
    return text


def _hash(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
