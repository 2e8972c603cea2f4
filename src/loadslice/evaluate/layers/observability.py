"""What a placement lets its operator see, asked for over the wire."""

from loadslice.evaluate.layers.subject import Subject

SEEN = {
    "readiness": "a readiness endpoint answers",
    "metrics": "a metrics page in Prometheus's form",
    "queues": "queue length per engine",
    "busy": "busy time per engine",
    "outcomes": "requests by outcome",
    "timing": "each reply says queue, copy and compute per stage",
    "engine": "each reply says which engine served it",
}


def measure(subject: Subject) -> dict[str, bool]:
    """Each of `SEEN`, and whether it is there."""
    with subject.line() as line:
        ready = line.get("/v2/health/ready")
        page = line.get("/metrics")
        reply = line.post(subject.letters[0])
    text = page.body.decode("utf-8", "replace") if page.status == 200 else ""
    return {
        "readiness": ready.status == 200,
        "metrics": "# TYPE " in text,
        "queues": "queue_length" in text,
        "busy": "busy_seconds" in text or "utilisation" in text,
        "outcomes": "outcome=" in text,
        "timing": bool(reply.stages),
        "engine": bool(reply.engines),
    }
