"""Converters of the small messages that others contain, and how failures of models are reported."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final, TypeVar

from pydantic import ValidationError

from lemon.execution.v1 import execution_pb2 as pb
from lemon_core.errors import LemonError
from lemon_core.execution_context import ContextRejected, ExecutionContext
from lemon_core.resume import ConversationKey, ResumeToken
from lemon_core.rpc.wire_json import InvalidMessage, dump_json, load_json
from lemon_core.runs import Image, InvalidCommand
from lemon_core.tool_policy import InvalidToolPolicy, ToolPolicy

CONTRACT_VERSION: Final = 1

_Word = TypeVar("_Word", bound=str)
_Number = TypeVar("_Number", bound=int)


class UnsupportedContract(LemonError):
    """The peer speaks another version of the contract."""

    code = "unsupported_contract_version"

    def __init__(self, version: int) -> None:
        super().__init__(
            f"contract_version {version} is not supported, this side speaks {CONTRACT_VERSION}: "
            "run the same release of Lemon on both"
        )
        self.version = version


def require_contract(version: int) -> None:
    """Raise `UnsupportedContract` for another contract than this one."""
    if version != CONTRACT_VERSION:
        raise UnsupportedContract(version)


@contextmanager
def reading(message: str) -> Iterator[None]:
    """Report what a model refuses as an `InvalidMessage` that names the field of `message`."""
    try:
        yield
    except ValidationError as exc:
        raise refused(message, exc) from exc


def refused(message: str, error: ValidationError) -> InvalidMessage:
    """What a model refused in `message`, without the value itself."""
    problem = error.errors(include_url=False, include_context=False, include_input=False)[0]
    where = ".".join([message, *(str(part) for part in problem["loc"])])
    return InvalidMessage(where, problem["msg"])


@contextmanager
def writing(message: str) -> Iterator[None]:
    """Report what a message cannot hold (text that is not Unicode) as an `InvalidMessage`."""
    try:
        yield
    except (ValueError, TypeError) as exc:
        raise InvalidMessage(message, str(exc)) from exc


def word_of(words: Mapping[_Number, _Word], number: _Number, field: str) -> _Word:
    """The word for an enum value; an unset or unknown one raises `InvalidMessage`."""
    word = words.get(number)
    if word is None:
        raise InvalidMessage(field, f"value {int(number)} is not set or not known")
    return word


def present(value: str, field: str) -> str:
    """`value`; raises `InvalidMessage` when it is empty."""
    if not value:
        raise InvalidMessage(field, "is required")
    return value


def resume_to_message(token: ResumeToken) -> pb.ResumeToken:
    """The message of a resume token."""
    return pb.ResumeToken(engine=token.engine, value=token.value)


def resume_from_message(message: pb.ResumeToken, field: str) -> ResumeToken:
    """The token in `message`; raises `InvalidMessage`."""
    if not message.engine or not message.value:
        raise InvalidMessage(field, "engine and value are required")
    return ResumeToken(engine=message.engine, value=message.value)


def conversation_to_message(key: ConversationKey) -> pb.ConversationKey:
    """The message of a conversation key."""
    if key[0] == "session":
        return pb.ConversationKey(session_key=key[1])
    return pb.ConversationKey(resume=pb.ResumeToken(engine=key[1], value=key[2]))


def conversation_from_message(message: pb.ConversationKey) -> ConversationKey | None:
    """The key in `message`; None when none is set. Raises `InvalidMessage`."""
    match message.WhichOneof("key"):
        case "session_key":
            return ("session", present(message.session_key, "conversation_key.session_key"))
        case "resume":
            token = resume_from_message(message.resume, "conversation_key.resume")
            return ("resume", token.engine, token.value)
        case _:
            return None


def image_to_message(image: Image, field: str) -> pb.Image:
    """The message of an image; raises `InvalidMessage` for data that is not base64."""
    return pb.Image(data=_image_bytes(image, field), mime_type=image.mime_type)


def canonical_image(image: Image) -> Image:
    """`image` as it is after a journey: the same bytes in plain base64 (no line breaks)."""
    data = base64.b64encode(_image_bytes(image, "images")).decode()
    return image if data == image.data else image.model_copy(update={"data": data})


def _image_bytes(image: Image, field: str) -> bytes:
    try:
        data = base64.b64decode("".join(image.data.split()), validate=True)
    except (binascii.Error, ValueError) as exc:
        raise InvalidMessage(field, f"data is not base64 ({exc})") from exc
    if not data:
        raise InvalidMessage(field, "data is empty")
    return data


def image_from_message(message: pb.Image, field: str) -> Image:
    """The image in `message`; raises `InvalidMessage`."""
    if not message.data or not message.mime_type:
        raise InvalidMessage(field, "data and mime_type are required")
    return Image(data=base64.b64encode(message.data).decode(), mime_type=message.mime_type)


def policy_to_json(policy: ToolPolicy) -> bytes:
    """The canonical JSON of a policy."""
    return dump_json(policy.dump(), "tool_policy_json")


def policy_from_json(data: bytes, field: str) -> ToolPolicy:
    """The policy in `data`, strictly parsed; raises `InvalidMessage`."""
    try:
        return ToolPolicy.parse(load_json(data, field))
    except InvalidToolPolicy as exc:
        raise InvalidMessage(field, str(exc)) from exc


def context_to_message(context: ExecutionContext) -> pb.ExecutionContext:
    """The wire form of a context."""
    with writing("execution_context.wire_json"):
        wire = context.to_wire_json()
    return pb.ExecutionContext(version=CONTRACT_VERSION, wire_json=wire)


class InvalidContext(InvalidCommand):
    """A context that this node does not run under; `rejected` is core's own error."""

    code = "context_invalid"

    def __init__(self, rejected: ContextRejected) -> None:
        super().__init__(str(rejected))
        self.rejected = rejected


def context_from_message(
    message: pb.ExecutionContext,
    *,
    now_ms: int,
    expected_run_id: str | None = None,
    expected_node_id: str | None = None,
    allowed_roots: tuple[str, ...] | None = None,
) -> ExecutionContext:
    """The context in `message`, validated from scratch.

    Raises `InvalidContext` (an `InvalidCommand`) with core's reason, `InvalidMessage` for no JSON.
    """
    data = load_json(message.wire_json, "execution_context.wire_json")
    try:
        if message.version != CONTRACT_VERSION:
            raise ContextRejected(
                "unsupported_version", f"version {message.version} is not {CONTRACT_VERSION}"
            )
        return ExecutionContext.from_wire(
            data,
            now_ms=now_ms,
            expected_run_id=expected_run_id,
            expected_node_id=expected_node_id,
            allowed_roots=allowed_roots,
        )
    except ContextRejected as exc:
        raise InvalidContext(exc) from exc
