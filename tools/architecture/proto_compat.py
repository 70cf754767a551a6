"""What a change of the protos would break, told from two compiled descriptor sets.

proto_compat.py check ACCEPTED CURRENT    fails on a break, and on anything not accepted yet
proto_compat.py accept CURRENT            write protos/accepted.binpb (`bazel run //protos:accept`)

A contract is what was accepted once. A field may go when its number and its name are reserved; a
number never changes its name, type or cardinality; what is reserved stays reserved. New things
have to be accepted too, for a contract that nobody recorded could not be kept.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from google.protobuf import descriptor_pb2 as pb

ACCEPTED = "protos/accepted.binpb"
_OURS = "lemon."


# Reserved numbers as inclusive ranges: `reserved 100 to max` is half a billion of them.
Spans = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Shape:
    """A message, enum or service: its members, and what it keeps reserved.

    `members` maps a member's identity (field and enum number, method name) to its description.
    """

    kind: str
    members: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    reserved_spans: Spans = ()
    reserved_names: frozenset[str] = frozenset()


def main(arguments: Sequence[str]) -> int:
    """Run one command; 1 when the contract is broken or not recorded."""
    match arguments:
        case ["check", accepted, current]:
            findings = list(compare(load(Path(accepted)), load(Path(current))))
            for finding in findings:
                print(finding)
            return int(bool(findings))
        case ["accept", current]:
            # Set by `bazel run`: the checkout, and not the copy this program runs in.
            target = Path(os.environ["BUILD_WORKSPACE_DIRECTORY"]) / ACCEPTED
            shutil.copyfile(current, target)
            target.chmod(0o644)
            print(f"{ACCEPTED}: updated")
            return 0
    print(__doc__, file=sys.stderr)
    return 2


def load(path: Path) -> dict[str, Shape]:
    """The shapes of a descriptor set by full name, foreign packages left out."""
    files = pb.FileDescriptorSet.FromString(path.read_bytes())
    shapes: dict[str, Shape] = {}
    for file in files.file:
        if not file.package.startswith(_OURS):
            continue
        for message in file.message_type:
            shapes.update(_messages(message, file.package))
        shapes.update(_enums(file.enum_type, file.package))
        shapes.update((f"{file.package}.{one.name}", _service(one)) for one in file.service)
    return shapes


def compare(accepted: Mapping[str, Shape], current: Mapping[str, Shape]) -> Iterator[str]:
    """One line for each break; when there is none, for each thing that is not accepted yet."""
    broken = False
    for name, old in sorted(accepted.items()):
        for line in _breaks(name, old, current.get(name)):
            broken = True
            yield line
    # Nobody is told to accept a break.
    if not broken:
        for addition in sorted(_additions(accepted, current)):
            yield f"{addition}: not accepted yet; run `bazel run //protos:accept`"


def _breaks(name: str, old: Shape, new: Shape | None) -> Iterator[str]:
    if new is None:
        yield f"{name}: the {old.kind} is gone; a breaking change is a new version beside it"
        return
    if new.kind != old.kind:
        yield f"{name}: was a {old.kind} and is a {new.kind}"
        return
    for key, (label, described) in old.members.items():
        if key not in new.members:
            yield from _removal(name, key, label, old, new)
            continue
        new_label, new_described = new.members[key]
        if new_label != label:
            yield f"{name}: number {key} was {label} and is {new_label}; take a new number"
        if new_described != described:
            yield f"{name}.{label}: was `{described}` and is `{new_described}`"
    yield from _freed(name, old, new)


def _removal(name: str, key: str, label: str, old: Shape, new: Shape) -> Iterator[str]:
    moved = [number for number, (other, _) in new.members.items() if other == label]
    if old.kind == "service":
        yield f"{name}.{label}: the method is gone"
    elif moved:
        yield f"{name}.{label}: number {key} became {moved[0]}; numbers never change"
    else:
        missing = []
        if _uncovered((int(key), int(key)), new.reserved_spans) is not None:
            missing.append(f"reserved {key};")
        if label not in new.reserved_names:
            missing.append(f'reserved "{label}";')
        if missing:
            yield f"{name}.{label}: removed without `{' '.join(missing)}`"


def _freed(name: str, old: Shape, new: Shape) -> Iterator[str]:
    for span in old.reserved_spans:
        number = _uncovered(span, new.reserved_spans)
        if number is not None:
            yield f"{name}: number {number} is reserved no more"
    for label in sorted(old.reserved_names - new.reserved_names):
        yield f'{name}: the name "{label}" is reserved no more'


def _uncovered(span: tuple[int, int], spans: Spans) -> int | None:
    """The first number of `span` that is in none of `spans`."""
    number = span[0]
    for first, last in sorted(spans):
        if first <= number <= last:
            number = last + 1
    return number if number <= span[1] else None


def _additions(accepted: Mapping[str, Shape], current: Mapping[str, Shape]) -> Iterator[str]:
    for name, new in current.items():
        old = accepted.get(name)
        if old is None:
            yield f"{name} ({new.kind})"
            continue
        for key in new.members.keys() - old.members.keys():
            yield f"{name}.{new.members[key][0]}"
        grown = any(_uncovered(one, old.reserved_spans) is not None for one in new.reserved_spans)
        if grown or new.reserved_names - old.reserved_names:
            yield f"{name} (reservation)"


def _messages(message: pb.DescriptorProto, package: str) -> Iterator[tuple[str, Shape]]:
    name = f"{package}.{message.name}"
    yield (
        name,
        Shape(
            "message",
            {str(one.number): (one.name, _field(message, one)) for one in message.field},
            # The end of a message's range is exclusive, the end of an enum's is not.
            tuple((span.start, span.end - 1) for span in message.reserved_range),
            frozenset(message.reserved_name),
        ),
    )
    for nested in message.nested_type:
        yield from _messages(nested, name)
    yield from _enums(message.enum_type, name)


def _field(message: pb.DescriptorProto, one: pb.FieldDescriptorProto) -> str:
    label = pb.FieldDescriptorProto.Label.Name(one.label).removeprefix("LABEL_").lower()
    kind = pb.FieldDescriptorProto.Type.Name(one.type).removeprefix("TYPE_").lower()
    words = ["optional" if one.proto3_optional else "plain" if label == "optional" else label]
    words.append(one.type_name.removeprefix(".") or kind)
    # An optional field sits in a oneof that protoc makes up for it.
    if one.HasField("oneof_index") and not one.proto3_optional:
        words.append(f"in oneof {message.oneof_decl[one.oneof_index].name}")
    return " ".join(words)


def _enums(enums: Iterable[pb.EnumDescriptorProto], package: str) -> Iterator[tuple[str, Shape]]:
    for enum in enums:
        yield (
            f"{package}.{enum.name}",
            Shape(
                "enum",
                {str(value.number): (value.name, "value") for value in enum.value},
                tuple((span.start, span.end) for span in enum.reserved_range),
                frozenset(enum.reserved_name),
            ),
        )


def _service(service: pb.ServiceDescriptorProto) -> Shape:
    return Shape("service", {one.name: (one.name, _method(one)) for one in service.method})


def _method(method: pb.MethodDescriptorProto) -> str:
    asked = "stream " * method.client_streaming + method.input_type.removeprefix(".")
    answered = "stream " * method.server_streaming + method.output_type.removeprefix(".")
    return f"({asked}) returns ({answered})"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
