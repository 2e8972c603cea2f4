"""What a probe found on the machine it ran on."""

import msgspec

from loadslice.spec.device import Device


class Runtime(msgspec.Struct, frozen=True, kw_only=True):
    """An inference runtime on this machine."""

    name: str
    version: str | None
    devices: list[str]
    """As the runtime itself reports them."""
    reason: str | None = None
    """Why it cannot be used, when it cannot."""


class LocalMachine(msgspec.Struct, frozen=True, kw_only=True):
    """What a probe of this machine found."""

    cpu: str
    architecture: str
    cores_usable: int
    """Logical processors this process may run on."""
    cores_physical: int | None
    isa: list[str] | None
    """Vector extensions that matter for inference, as the operating system names them; ``None``: not listed here."""
    memory_bytes: int
    memory_available_bytes: int
    memory_limit_bytes: int | None
    """The container's limit, where there is one."""
    numa_nodes: int | None
    onchip_bytes: int | None
    """Last-level cache, all instances."""
    runtimes: list[Runtime]
    device: Device
    """This machine's processor as a device, its peak and bandwidth measured."""
