"""The toolchains we know how to ask, and the targets each compiles for.

Versions are pinned: what is asked of them, and how their answers read, was tried at exactly these.
"""

import difflib
import re

from loadslice.spec.errors import InputError
from loadslice.spec.toolchain import Toolchain

QNN = Toolchain(
    name="qnn",
    title="Qualcomm AI Engine Direct for the Hexagon NPU (HTP), by ONNX Runtime's QNN provider",
    requires=["onnxruntime-qnn==2.7.0", "onnxruntime==1.32.0"],
    provides="onnxruntime-qnn",
    module="onnxruntime_qnn",
    python_min=(3, 11),
    python_max=(3, 13),
    licence=(
        "MIT for the provider; the QAIRT libraries in its wheel are under Qualcomm's AI Stack License: develop and "
        "benchmark your applications, no reverse engineering, redistribution only as part of an application"
    ),
    targets=["qnn-htp"],
    input="onnx",
    download_mb=130,
    installed_mb=510,
)
VELA = Toolchain(
    name="vela",
    title="Arm Vela for Ethos-U55, U65 and U85",
    requires=["ethos-u-vela==5.2.0"],
    provides="ethos-u-vela",
    module="ethosu.vela",
    python_min=(3, 10),
    python_max=(3, 13),
    licence="Apache-2.0",
    targets=["ethos-u55-32", "ethos-u55-64", "ethos-u55-128", "ethos-u55-256", "ethos-u65-256", "ethos-u65-512"]
    + [f"ethos-u85-{macs}" for macs in (128, 256, 512, 1024, 2048)],
    input="tflite",
    download_mb=20,
    installed_mb=110,
)
RKNN = Toolchain(
    name="rknn",
    title="Rockchip RKNN-Toolkit2",
    requires=["rknn-toolkit2==2.5.0"],
    provides="rknn-toolkit2",
    module="rknn.api",
    python_min=(3, 11),
    python_max=(3, 12),
    licence=(
        "RKNN SDK License, proprietary: only to design, develop and test applications for Rockchip's products; no "
        "reverse engineering"
    ),
    targets=[f"rknn-{chip}" for chip in ("rk3562", "rk3566", "rk3568", "rk3576", "rk3588", "rv1103", "rv1106")],
    input="onnx",
    download_mb=3000,
    installed_mb=5600,
    own_python=True,
)

TFLITE = Toolchain(
    name="tflite",
    title="ONNX to int8 TFLite, for compilers that read only that: onnx2tf and AI Edge Quantizer",
    requires=["onnx2tf==2.6.9", "ai-edge-quantizer==0.10.0"],
    provides="onnx2tf",
    module="onnx2tf",
    python_min=(3, 12),
    python_max=(3, 13),
    licence="MIT (onnx2tf) and Apache-2.0 (AI Edge Quantizer)",
    targets=[],
    input="onnx",
    download_mb=300,
    installed_mb=820,
    own_python=True,
)

KNOWN = {toolchain.name: toolchain for toolchain in (QNN, VELA, RKNN, TFLITE)}

OPTIONS: dict[str, dict[str, str]] = {
    "qnn": {
        "soc_model": r"\d{1,4}",
        "htp_arch": r"\d{1,3}",
        "offload_graph_io_quantization": r"[01]",
        "enable_htp_fp16_precision": r"[01]",
        "htp_graph_finalization_optimization_mode": r"[0-3]",
        "vtcm_mb": r"\d{1,3}",
    },
    "vela": {"system_config": r"[A-Za-z0-9_]+", "memory_mode": r"[A-Za-z0-9_]+", "optimise": r"Size|Performance"},
    "rknn": {},
    "tflite": {},
}
"""Options of a target and what each may be; they reach a vendor's program, so nothing else passes."""

DEFAULTS: dict[str, dict[str, str]] = {"qnn": {"soc_model": "60"}, "vela": {}, "rknn": {}, "tflite": {}}
"""Where none is given. Without a SoC the HTP compiler fails on float models."""


def find(name: str) -> Toolchain:
    """A toolchain by name.

    Raises:
        InputError: There is none of this name.
    """
    if name not in KNOWN:
        raise InputError(f"toolchain '{name[:60]}' is not known; there are {', '.join(KNOWN)}.")
    return KNOWN[name]


def split_target(text: str) -> tuple[str, dict[str, str]]:
    """Read `qnn-htp:soc_model=60,htp_arch=75`.

    Raises:
        InputError: Not of that form.
    """
    name, _, rest = text.partition(":")
    options = {}
    for part in rest.split(",") if rest else []:
        key, equals, value = part.partition("=")
        if not equals or not key or not value:
            raise InputError(f"target '{text[:80]}' is not of the form NAME:option=value,option=value.")
        if key in options:
            raise InputError(f"target '{text[:80]}' gives '{key}' twice.")
        options[key] = value
    return name, options


def target(text: str) -> tuple[Toolchain, str, dict[str, str]]:
    """The toolchain of a target, the target's name, and its options, defaults filled in.

    Raises:
        InputError: No toolchain compiles for it, or an option is not one of its own.
    """
    name, options = split_target(text)
    toolchain = next((known for known in KNOWN.values() if name in known.targets), None)
    if toolchain is None:
        targets = [target for known in KNOWN.values() for target in known.targets]
        near = difflib.get_close_matches(name, targets, n=3, cutoff=0.4) or targets
        raise InputError(f"target '{name[:60]}': no toolchain compiles for it; near it: {', '.join(near)}.")
    return toolchain, name, checked_options(toolchain, name, options)


def checked_options(toolchain: Toolchain, target: str, options: dict[str, str]) -> dict[str, str]:
    """A target's options, defaults filled in.

    Raises:
        InputError: One is unknown or cannot be.
    """
    allowed = OPTIONS[toolchain.name]
    for key, value in options.items():
        if key not in allowed:
            raise InputError(f"target '{target}' has no option '{key[:40]}'; it has {', '.join(allowed)}.")
        if not re.fullmatch(allowed[key], value):
            raise InputError(f"target '{target}': {key}={value[:40]} must look like {allowed[key]}.")
    defaults = {
        key: value
        for key, value in DEFAULTS[toolchain.name].items()
        if not (key == "soc_model" and "htp_arch" in options)
    }
    return {**defaults, **options}
