"""Message types of the gRPC front, made from ``proto/inference.proto`` when the server starts.

The reader knows the part of proto3 that the file uses; protobuf checks the rest. Types live in a pool of their own, for
a client library in the same process may have registered the same names.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from loadslice.spec.errors import MissingExtraError

PACKAGE = "inference"
SERVICE = "inference.GRPCInferenceService"

_TOKEN = re.compile(r'"[^"]*"|[A-Za-z_][\w.]*|\d+|[{}();=<>,]')
_COMMENT = re.compile(r"//[^\n]*")

_SCALARS = {
    "double": 1, "float": 2, "int64": 3, "uint64": 4, "int32": 5, "bool": 8, "string": 9, "bytes": 12, "uint32": 13,
}  # fmt: skip
"""Names of the language -> numbers of ``FieldDescriptorProto.Type``."""
_MESSAGE, _OPTIONAL, _REPEATED = 11, 1, 3


def text() -> str:
    """The protocol as clients may want it."""
    return resources.files("loadslice.serve").joinpath("proto/inference.proto").read_text(encoding="utf-8")


@dataclass(slots=True)
class _Reader:
    """Builds a file descriptor from tokens."""

    tokens: list[str]
    at: int = 0
    stack: list[str] = field(default_factory=list)

    def take(self, expected: str | None = None) -> str:
        token = self.tokens[self.at]
        assert expected is None or token == expected, f"inference.proto: {expected!r} expected, not {token!r}"
        self.at += 1
        return token

    def peek(self) -> str:
        return self.tokens[self.at]

    def file(self, descriptor: Any) -> None:
        """The whole file; services are left out, for the front dispatches by path."""
        while self.at < len(self.tokens):
            word = self.take()
            if word == "message":
                self.message(descriptor.message_type.add())
            elif word == "service":
                self.take()
                self.block()
            else:  # syntax, package
                while self.take() != ";":
                    pass

    def block(self) -> None:
        self.take("{")
        while self.take() != "}":
            pass

    def message(self, descriptor: Any) -> None:
        descriptor.name = self.take()
        self.stack.append(descriptor.name)
        self.take("{")
        while self.peek() != "}":
            if self.peek() == "message":
                self.take()
                self.message(descriptor.nested_type.add())
            elif self.peek() == "oneof":
                self.take()
                descriptor.oneof_decl.add().name = self.take()
                self.take("{")
                while self.peek() != "}":
                    self.field(descriptor, oneof=len(descriptor.oneof_decl) - 1)
                self.take("}")
            else:
                self.field(descriptor)
        self.take("}")
        self.stack.pop()

    def field(self, descriptor: Any, oneof: int | None = None) -> None:
        word = self.take()
        repeated = word in ("repeated", "map")
        kind = self.map_entry(descriptor) if word == "map" else self.take() if repeated else word
        made = descriptor.field.add()
        made.name = self.take()
        self.take("=")
        made.number = int(self.take())
        self.take(";")
        made.label = _REPEATED if repeated else _OPTIONAL
        if oneof is not None:
            made.oneof_index = oneof
        if word == "map":
            entry = "".join(part.capitalize() for part in made.name.split("_")) + "Entry"
            descriptor.nested_type[-1].name = entry
            kind = entry
        self.set_type(made, kind, [nested.name for nested in descriptor.nested_type])

    def map_entry(self, descriptor: Any) -> str:
        """A map is a repeated message of two fields."""
        self.take("<")
        key = self.take()
        self.take(",")
        value = self.take()
        self.take(">")
        entry = descriptor.nested_type.add()
        entry.options.map_entry = True
        for number, (name, kind) in enumerate((("key", key), ("value", value)), 1):
            made = entry.field.add()
            made.name, made.number, made.label = name, number, _OPTIONAL
            self.set_type(made, kind, [])
        return ""

    def set_type(self, made: Any, kind: str, nested: list[str]) -> None:
        if kind in _SCALARS:
            made.type = _SCALARS[kind]
            return
        made.type = _MESSAGE
        inside = [*self.stack, kind] if kind in nested else [kind]
        made.type_name = "." + ".".join([PACKAGE, *inside])


@dataclass(frozen=True, slots=True)
class Messages:
    """Classes by name, as protobuf makes them."""

    classes: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        return self.classes[name]


@cache
def messages() -> Messages:
    """All message classes.

    Raises:
        MissingExtraError: protobuf is not installed.
    """
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    except ImportError as error:
        raise MissingExtraError("grpc", "--grpc") from error
    descriptor = descriptor_pb2.FileDescriptorProto(name="inference.proto", package=PACKAGE, syntax="proto3")
    _Reader(_TOKEN.findall(_COMMENT.sub("", text()))).file(descriptor)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(descriptor)
    found = pool.FindFileByName("inference.proto")
    return Messages({name: message_factory.GetMessageClass(kind) for name, kind in found.message_types_by_name.items()})
