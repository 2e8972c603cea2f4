"""The OpenAPI 3.1 document of one server, made from what it serves: paths, tensors, headers, statuses."""

from typing import Any

import loadslice
from loadslice.serve import oip_reply
from loadslice.serve.admission import RAW_TYPES
from loadslice.serve.datatypes import BYTES, NUMPY
from loadslice.serve.envelope import ATTEMPT_MAX
from loadslice.serve.front import Call, Front
from loadslice.serve.limits import Limits
from loadslice.serve.refusals import RefusalError
from loadslice.serve.reply import Reply, json_reply
from loadslice.serve.service import Service
from loadslice.spec.pipeline import CLASSES, PRECISIONS
from loadslice.spec.pipeline_shares import TENANT_LENGTH_MAX

PATH = "/openapi.json"

JSON = "application/json"
OCTETS = "application/octet-stream"

STATUSES = {
    400: "The request is not one: the text names the place.",
    401: "A valid token is needed.",
    403: "The token does not allow this.",
    404: "No such model or version.",
    405: "The path takes another method.",
    408: "The body did not arrive in time.",
    413: "The body is larger than is taken.",
    415: "The content is of a type that is not taken.",
    417: "The expectation is not `100-continue`.",
    422: "No engine takes such a request.",
    429: "Rejected: a queue is full, or a rate, quota or retry budget is used up. Come back after `Retry-After`.",
    431: "The headers are too large.",
    500: "A stage failed on this request.",
    501: "A transfer coding that is not taken.",
    502: "An engine failed on this request, or all that take it are down.",
    503: "Shed, or not ready. Come back after `Retry-After`, where it is given.",
    504: "The deadline has passed.",
}


def add(front: Front, limits: Limits) -> None:
    """Serve the document at `PATH`.

    Args:
        front: Not started yet.
        limits: What clients may ask.
    """

    async def answer(_call: Call) -> Reply:
        if front.service is None:
            raise RefusalError(503, "models are being loaded", retry_after_ns=10**9)
        return json_reply(document(front.service, limits))

    front.routes[PATH] = {"GET": answer}


def document(service: Service, limits: Limits) -> dict[str, Any]:
    """The document.

    Args:
        service: What answers.
        limits: What clients may ask.
    """
    name = service.pipeline.pipeline
    model = f"/v2/models/{name}"
    version = f"{model}/versions/{oip_reply.VERSION}"
    paths: dict[str, Any] = {
        "/v2": _get("serverMetadata", "What this server is.", "ServerMetadata"),
        "/v2/health/live": _get("serverLive", "The process answers.", "Live"),
        "/v2/health/ready": _get("serverReady", "Every required engine gave an answer just now.", "Ready"),
        "/v1/pipelines": _get("pipelines", "What is served.", "Pipelines"),
        "/metrics": _text("metrics", "Prometheus exposition."),
        PATH: _get("openapi", "This document.", None),
    }
    for number, path in enumerate((model, version)):
        suffix = "Version" if number else ""
        paths[path] = _get(f"modelMetadata{suffix}", f"Inputs and outputs of '{name}'.", "ModelMetadata")
        paths[f"{path}/ready"] = _get(f"modelReady{suffix}", f"Whether '{name}' can be used.", "Ready")
        paths[f"{path}/infer"] = {"post": _infer(f"infer{suffix}", limits)}
    if service.admission.takes_raw:
        paths[f"/v1/pipelines/{name}"] = {"post": _raw(limits)}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": f"loadslice: {name}",
            "version": loadslice.__version__,
            "description": "Open Inference Protocol v2 with the binary tensor extension, and raw bodies.",
        },
        "paths": paths,
        "components": {"schemas": _schemas(service, limits), "securitySchemes": _SECURITY},
        "security": [{}, {"token": []}],
    }


_SECURITY = {"token": {"type": "http", "scheme": "bearer", "description": "Where the server asks for one."}}


def _ref(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _failures(*statuses: int) -> dict[str, Any]:
    return {str(status): _failure(status) for status in (401, 403, 405, 429, 431, *statuses)}


def _failure(status: int) -> dict[str, Any]:
    found: dict[str, Any] = {
        "description": STATUSES[status],
        "content": {JSON: {"schema": _ref("Error")}},
    }
    if status in (429, 503):
        hint = {"description": "Whole seconds, rounded up.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
        finer = {"description": "The same hint in milliseconds.", "schema": {"type": "string", "pattern": "^[0-9]+$"}}
        found["headers"] = {"Retry-After": hint, "x-loadslice-retry-after-ms": finer}
    return found


def _get(operation: str, summary: str, schema: str | None) -> dict[str, Any]:
    content = {JSON: {"schema": _ref(schema) if schema else {"type": "object"}}}
    return {
        "get": {
            "operationId": operation,
            "summary": summary,
            "responses": {"200": {"description": summary, "content": content}, **_failures(503)},
        }
    }


def _text(operation: str, summary: str) -> dict[str, Any]:
    content = {"text/plain": {"schema": {"type": "string"}}}
    return {
        "get": {
            "operationId": operation,
            "summary": summary,
            "responses": {"200": {"description": summary, "content": content}, **_failures(503)},
        }
    }


def _header(name: str, description: str, schema: dict[str, Any]) -> dict[str, Any]:
    return {"name": name, "in": "header", "required": False, "description": description, "schema": schema}


def _wishes(limits: Limits) -> list[dict[str, Any]]:
    """Headers that say how a request wants to be treated."""
    text = {"type": "string", "maxLength": limits.text_max}
    return [
        _header("x-loadslice-priority", "Class.", {"enum": [*CLASSES, *map(str, range(len(CLASSES)))]}),
        _header(
            "x-loadslice-deadline-ms",
            "Longest time the answer may take, counted from the head's arrival; above 0, at most a day.",
            {"type": "string", "pattern": r"^[0-9]{1,12}(\.[0-9]{1,12})?$"},
        ),
        _header(
            "x-loadslice-attempt",
            f"Which attempt this is, 1 to {ATTEMPT_MAX}; repeated ones are paid from the retry budget.",
            {"type": "string", "pattern": "^[0-9]{1,4}$"},
        ),
        _header("x-loadslice-min-precision", "Lowest that will do.", {"enum": list(PRECISIONS)}),
        _header("x-loadslice-tenant", "Whose request it is.", {"type": "string", "maxLength": TENANT_LENGTH_MAX}),
        _header("x-loadslice-source", "Where it comes from; rules of the pipeline may look at it.", text),
        _header("x-loadslice-key", "Requests of one key get one version.", text),
        _header("x-loadslice-tokens", "Prompt tokens.", {"type": "string", "pattern": "^[0-9]{1,9}$"}),
        _header("x-request-id", "Comes back in the journal.", text),
        _header("traceparent", "W3C trace context.", text),
    ]


_ANSWERED = {
    "x-loadslice-engine": {"description": "Engines, stage by stage.", "schema": {"type": "string"}},
    "x-loadslice-timing": {
        "description": "Queue, copy and compute of each stage, milliseconds.",
        "schema": {"type": "string"},
    },
}

_INFER_FAILURES = (400, 404, 408, 413, 415, 417, 422, 500, 501, 502, 503, 504)


def _infer(operation: str, limits: Limits) -> dict[str, Any]:
    length = _header(
        "Inference-Header-Content-Length",
        "Bytes of JSON before binary tensors.",
        {"type": "string", "pattern": "^[0-9]{1,18}$"},
    )
    answer = {
        JSON: {"schema": _ref("InferResponse")},
        OCTETS: {"schema": {"description": "JSON, then the binary tensors that it names."}},
    }
    return {
        "operationId": operation,
        "summary": "One request through the pipeline.",
        "description": f"Bodies of at most {limits.body_bytes_max} bytes. With binary tensors the body is JSON, then "
        "their bytes, and `Inference-Header-Content-Length` says where they begin.",
        "parameters": [length, *_wishes(limits)],
        "requestBody": {"required": True, "content": {JSON: {"schema": _ref("InferRequest")}}},
        "responses": {
            "200": {"description": "Completed.", "headers": _ANSWERED, "content": answer},
            **_failures(*_INFER_FAILURES),
        },
    }


def _raw(limits: Limits) -> dict[str, Any]:
    kinds = ["image/png", "image/jpeg", *RAW_TYPES]
    answer = {JSON: {"schema": _ref("InferResponse")}}
    return {
        "operationId": "raw",
        "summary": "Bytes as they are, for the first stage to read.",
        "parameters": _wishes(limits),
        "requestBody": {
            "required": True,
            "content": {kind: {"schema": {"type": "string", "minLength": 1}} for kind in kinds if kind != JSON}
            | {JSON: {"schema": {}}},
        },
        "responses": {
            "200": {"description": "Completed.", "headers": _ANSWERED, "content": answer},
            **_failures(*_INFER_FAILURES),
        },
    }


def _object(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
    }


def _schemas(service: Service, limits: Limits) -> dict[str, Any]:
    name = {"type": "string"}
    shape = {"type": "array", "items": {"type": "integer"}}
    tensor = _object(name=name, datatype={"enum": list(NUMPY)}, shape=shape)
    inputs = service.admission.metadata()
    output = _object(["name", "datatype", "shape"], **tensor["properties"], data={"type": "array"}, parameters={})
    return {
        "Error": _object(error={"type": "string"}),
        "Live": _object(live={"const": True}),
        "Ready": _object(name=name, ready={"const": True}),
        "ServerMetadata": _object(name=name, version=name, extensions={"type": "array", "items": name}),
        "Pipelines": _object(
            pipelines={
                "type": "array",
                "items": _object(
                    name=name,
                    stages={
                        "type": "array",
                        "items": _object(name=name, engines={"type": "array", "items": name}),
                    },
                ),
            }
        ),
        "ModelMetadata": _object(
            name=name,
            versions={"type": "array", "items": name},
            platform=name,
            inputs={"type": "array", "items": tensor},
            outputs={"type": "array", "items": tensor},
        ),
        "InferRequest": _object(
            ["inputs"],
            id={"type": "string"},
            parameters={"type": "object"},
            inputs={
                "type": "array",
                "minItems": 1,
                "maxItems": min(limits.inputs_max, max(1, len(inputs))),
                "items": {"anyOf": [_input(one, limits) for one in inputs]},
            },
            outputs={
                "type": "array",
                "items": _object(["name"], name=_output_name(service), parameters={"type": "object"}),
            },
        ),
        "InferResponse": _object(
            ["model_name", "model_version", "outputs"],
            model_name={"const": service.pipeline.pipeline},
            model_version=name,
            id=name,
            outputs={"type": "array", "items": output},
        ),
    }


def _output_name(service: Service) -> dict[str, Any]:
    return {"enum": [one["name"] for one in service.outputs]} if service.outputs else {"type": "string"}


_VALUE = {"BOOL": {"type": "boolean"}, BYTES: {"type": "string"}}


def _input(one: dict[str, Any], limits: Limits) -> dict[str, Any]:
    """An input as JSON; its values may be flat or nested, and must be as many as the shape says."""
    sides = [{"type": "integer", "minimum": 0} if side < 0 else {"const": side} for side in one["shape"]]
    values = _VALUE.get(one["datatype"], {"type": "number" if one["datatype"].startswith("FP") else "integer"})
    return _object(
        ["name", "datatype", "shape", "data"],
        name={"const": one["name"]},
        datatype={"const": one["datatype"]},
        shape={"type": "array", "prefixItems": sides, "minItems": len(sides), "maxItems": len(sides)},
        parameters={"type": "object"},
        data={"type": "array", "items": {"anyOf": [values, {"type": "array"}]}, "maxItems": limits.json_elements_max},
    )
