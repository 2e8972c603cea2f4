"""What Triton's clients can ask for beyond the Open Inference Protocol, and what to ask here instead."""

INSTEAD = {
    "config": "GET /v2/models/NAME (ModelMetadata) has the tensors, the pipeline file the rest",
    "stats": "GET /metrics has counts and times",
    "repository": "`loadslice model` and /admin/ load, list and switch versions",
    "sharedmemory": "tensors are sent in the request, as the binary extension has them",
    "trace": "`loadslice serve --otlp` sends spans",
    "logging": "`loadslice serve --log-format` and --stories say what is logged",
}

_METHODS = {
    "ModelConfig": "config",
    "ModelStatistics": "stats",
    "RepositoryIndex": "repository",
    "RepositoryModelLoad": "repository",
    "RepositoryModelUnload": "repository",
    "SystemSharedMemoryStatus": "sharedmemory",
    "SystemSharedMemoryRegister": "sharedmemory",
    "SystemSharedMemoryUnregister": "sharedmemory",
    "CudaSharedMemoryStatus": "sharedmemory",
    "CudaSharedMemoryRegister": "sharedmemory",
    "CudaSharedMemoryUnregister": "sharedmemory",
    "TraceSetting": "trace",
    "LogSettings": "logging",
}


def of_path(path: str) -> str | None:
    """Why a path under ``/v2`` that is none of ours is not here; ``None``: it is no extension that is known."""
    parts = path.strip("/").split("/")
    if parts[:1] != ["v2"] or len(parts) < 2:
        return None
    if parts[-1] in ("config", "stats") and parts[1] == "models":
        return _refusal(f"'{parts[-1]}'", parts[-1])
    if "trace" in parts[1:]:
        return _refusal("'trace'", "trace")
    kind = parts[1].removeprefix("system").removeprefix("cuda")
    return _refusal(f"'{parts[1]}'", kind) if kind in ("repository", "sharedmemory", "logging") else None


def of_method(path: str) -> str | None:
    """The same for a method of gRPC, by its path ``/SERVICE/METHOD``."""
    name = path.rpartition("/")[2]
    return _refusal(name, _METHODS[name]) if name in _METHODS else None


def _refusal(name: str, kind: str) -> str:
    return f"{name} is an extension of Triton's, not of the Open Inference Protocol, and is not here: {INSTEAD[kind]}"
