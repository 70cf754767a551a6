"""Converters of what is asked for: commands, requests, steering, and their answers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lemon.execution.v1 import execution_pb2 as pb
from lemon.router.v1 import router_pb2 as router_pb
from lemon_core.bridges import (
    ReceiptStatus,
    SteerMode,
    SteerOutcome,
    SubmitReceipt,
    SubmitResult,
    SubmitStatus,
)
from lemon_core.rpc.fields import (
    CONTRACT_VERSION,
    context_from_message,
    context_to_message,
    conversation_from_message,
    conversation_to_message,
    image_from_message,
    image_to_message,
    policy_from_json,
    policy_to_json,
    present,
    reading,
    require_contract,
    resume_from_message,
    resume_to_message,
    word_of,
)
from lemon_core.rpc.wire_json import dump_map, load_map
from lemon_core.runs import (
    ExecutionCommand,
    Lane,
    MissingContext,
    MissingConversationKey,
    QueueMode,
    RunRequest,
)

_LANES: Final[Mapping[Lane, pb.Lane]] = {
    "main": pb.LANE_MAIN,
    "subagent": pb.LANE_SUBAGENT,
    "background_exec": pb.LANE_BACKGROUND_EXEC,
}
_LANE_WORDS: Final[Mapping[pb.Lane, Lane]] = {number: word for word, number in _LANES.items()}

_STEER_MODES: Final[Mapping[SteerMode, pb.SteerMode]] = {
    "steer": pb.STEER_MODE_STEER,
    "steer_backlog": pb.STEER_MODE_STEER_BACKLOG,
    "redirect": pb.STEER_MODE_REDIRECT,
}
_STEER_WORDS: Final[Mapping[pb.SteerMode, SteerMode]] = {
    number: word for word, number in _STEER_MODES.items()
}

_RECEIPTS: Final[Mapping[ReceiptStatus, pb.ReceiptStatus]] = {
    "accepted": pb.RECEIPT_STATUS_ACCEPTED,
    "duplicate": pb.RECEIPT_STATUS_DUPLICATE,
    "already_completed": pb.RECEIPT_STATUS_ALREADY_COMPLETED,
}
_RECEIPT_WORDS: Final[Mapping[pb.ReceiptStatus, ReceiptStatus]] = {
    number: word for word, number in _RECEIPTS.items()
}

_QUEUE_MODES: Final[Mapping[QueueMode, router_pb.QueueMode]] = {
    "collect": router_pb.QUEUE_MODE_COLLECT,
    "followup": router_pb.QUEUE_MODE_FOLLOWUP,
    "steer": router_pb.QUEUE_MODE_STEER,
    "steer_backlog": router_pb.QUEUE_MODE_STEER_BACKLOG,
    "redirect": router_pb.QUEUE_MODE_REDIRECT,
    "interrupt": router_pb.QUEUE_MODE_INTERRUPT,
}
_QUEUE_WORDS: Final[Mapping[router_pb.QueueMode, QueueMode]] = {
    router_pb.QUEUE_MODE_UNSPECIFIED: "collect",
    **{number: word for word, number in _QUEUE_MODES.items()},
}

_SUBMIT: Final[Mapping[SubmitStatus, router_pb.SubmitStatus]] = {
    "accepted": router_pb.SUBMIT_STATUS_ACCEPTED,
    "rejected": router_pb.SUBMIT_STATUS_REJECTED,
    "unavailable": router_pb.SUBMIT_STATUS_UNAVAILABLE,
    "outcome_unknown": router_pb.SUBMIT_STATUS_OUTCOME_UNKNOWN,
}
_SUBMIT_WORDS: Final[Mapping[router_pb.SubmitStatus, SubmitStatus]] = {
    number: word for word, number in _SUBMIT.items()
}


def command_to_message(command: ExecutionCommand) -> pb.ExecutionCommand:
    """The message of a command.

    Raises `InvalidMessage` for images that are not base64 and a `meta` that is not JSON.
    """
    message = pb.ExecutionCommand(
        run_id=command.run_id,
        session_key=command.session_key,
        prompt=command.prompt,
        images=[
            image_to_message(image, f"images[{index}]")
            for index, image in enumerate(command.images)
        ],
        cwd=command.cwd,
        lane=_LANES[command.lane],
        meta_json=dump_map(command.meta, "meta_json"),
        contract_version=CONTRACT_VERSION,
    )
    if command.conversation_key is not None:
        message.conversation_key.CopyFrom(conversation_to_message(command.conversation_key))
    if command.resume is not None:
        message.resume.CopyFrom(resume_to_message(command.resume))
    if command.tool_policy is not None:
        message.tool_policy_json = policy_to_json(command.tool_policy)
    if command.execution_context is not None:
        message.execution_context.CopyFrom(context_to_message(command.execution_context))
    return message


def command_from_message(
    message: pb.ExecutionCommand,
    *,
    now_ms: int,
    expected_node_id: str | None = None,
    allowed_roots: tuple[str, ...] | None = None,
) -> ExecutionCommand:
    """The command in `message`, its context validated for this run and node.

    Raises `UnsupportedContract`, else an `InvalidCommand` whose message names the field:
    `InvalidMessage`, `MissingConversationKey`, `MissingContext` or `InvalidContext`.
    """
    require_contract(message.contract_version)
    run_id = present(message.run_id, "run_id")
    session_key = present(message.session_key, "session_key")
    conversation = conversation_from_message(message.conversation_key)
    if conversation is None:
        raise MissingConversationKey(run_id)
    if not message.HasField("execution_context"):
        raise MissingContext(run_id)
    context = context_from_message(
        message.execution_context,
        now_ms=now_ms,
        expected_run_id=run_id,
        expected_node_id=expected_node_id,
        allowed_roots=allowed_roots,
    )
    with reading("command"):
        return ExecutionCommand(
            run_id=run_id,
            session_key=session_key,
            conversation_key=conversation,
            prompt=message.prompt,
            images=tuple(
                image_from_message(image, f"images[{index}]")
                for index, image in enumerate(message.images)
            ),
            cwd=message.cwd if message.HasField("cwd") else None,
            resume=resume_from_message(message.resume, "resume")
            if message.HasField("resume")
            else None,
            lane=_LANE_WORDS.get(message.lane, "main"),
            tool_policy=policy_from_json(message.tool_policy_json, "tool_policy_json")
            if message.HasField("tool_policy_json")
            else None,
            execution_context=context,
            meta=load_map(message.meta_json, "meta_json"),
        )


def run_request_to_message(request: RunRequest) -> router_pb.RunRequest:
    """The message of a request; its run id must be set. Raises as `command_to_message`."""
    message = router_pb.RunRequest(
        run_id=present(request.run_id or "", "run_id"),
        origin=request.origin,
        session_key=request.session_key,
        agent_id=request.agent_id,
        prompt=request.prompt,
        queue_mode=_QUEUE_MODES[request.queue_mode],
        model=request.model,
        images=[
            image_to_message(image, f"images[{index}]")
            for index, image in enumerate(request.images)
        ],
        cwd=request.cwd,
        meta_json=dump_map(request.meta, "meta_json"),
        contract_version=CONTRACT_VERSION,
    )
    if request.resume is not None:
        message.resume.CopyFrom(resume_to_message(request.resume))
    if request.tool_policy is not None:
        message.tool_policy_json = policy_to_json(request.tool_policy)
    if request.execution_context is not None:
        message.execution_context.CopyFrom(context_to_message(request.execution_context))
    return message


def run_request_from_message(message: router_pb.RunRequest, *, now_ms: int) -> RunRequest:
    """The request in `message`, gaps filled as `RunRequest.normalize` does.

    Raises `UnsupportedContract`, else `InvalidMessage` or `InvalidContext`.
    """
    require_contract(message.contract_version)
    run_id = present(message.run_id, "run_id")
    context = None
    if message.HasField("execution_context"):
        # The parent's: it names another run than this one.
        context = context_from_message(message.execution_context, now_ms=now_ms)
    with reading("request"):
        return RunRequest.normalize(
            {
                "run_id": run_id,
                "origin": message.origin,
                "session_key": message.session_key,
                "agent_id": message.agent_id,
                "prompt": message.prompt,
                "queue_mode": word_of(_QUEUE_WORDS, message.queue_mode, "queue_mode"),
                "model": message.model,
                "images": [
                    image_from_message(image, f"images[{index}]")
                    for index, image in enumerate(message.images)
                ],
                "resume": resume_from_message(message.resume, "resume")
                if message.HasField("resume")
                else None,
                "cwd": message.cwd if message.HasField("cwd") else None,
                "tool_policy": policy_from_json(message.tool_policy_json, "tool_policy_json")
                if message.HasField("tool_policy_json")
                else None,
                "execution_context": context,
                "meta": load_map(message.meta_json, "meta_json"),
            }
        )


def submit_result_to_message(result: SubmitResult) -> router_pb.SubmitResult:
    """The message of a submission's answer."""
    return router_pb.SubmitResult(
        status=_SUBMIT[result.status],
        run_id=result.run_id,
        reason=result.reason,
        duplicate=result.duplicate,
        detail_json=None if result.detail is None else dump_map(result.detail, "detail_json"),
    )


def submit_result_from_message(message: router_pb.SubmitResult) -> SubmitResult:
    """The answer in `message`; raises `InvalidMessage`."""
    return SubmitResult(
        status=word_of(_SUBMIT_WORDS, message.status, "status"),
        run_id=message.run_id if message.HasField("run_id") else None,
        reason=message.reason if message.HasField("reason") else None,
        duplicate=message.duplicate,
        detail=load_map(message.detail_json, "detail_json")
        if message.HasField("detail_json")
        else None,
    )


def receipt_to_message(receipt: SubmitReceipt) -> pb.SubmitReceipt:
    """The message of a receipt."""
    return pb.SubmitReceipt(
        run_id=receipt.run_id,
        status=_RECEIPTS[receipt.status],
        node_id=receipt.node_id,
        stream_epoch=receipt.stream_epoch,
    )


def receipt_from_message(message: pb.SubmitReceipt) -> SubmitReceipt:
    """The receipt in `message`; raises `InvalidMessage`."""
    return SubmitReceipt(
        run_id=message.run_id,
        status=word_of(_RECEIPT_WORDS, message.status, "status"),
        node_id=message.node_id,
        stream_epoch=message.stream_epoch,
    )


def steer_mode_to_message(mode: SteerMode) -> pb.SteerMode:
    """The enum value of a steer mode."""
    return _STEER_MODES[mode]


def steer_mode_from_message(mode: pb.SteerMode) -> SteerMode:
    """The steer mode of an enum value; raises `InvalidMessage`."""
    return word_of(_STEER_WORDS, mode, "mode")


def steer_outcome_to_message(outcome: SteerOutcome) -> pb.SteerOutcome:
    """The message of a steer outcome."""
    return pb.SteerOutcome(
        submission_run_id=outcome.submission_run_id,
        mode=_STEER_MODES[outcome.mode],
        accepted=outcome.accepted,
        reason=outcome.reason,
    )


def steer_outcome_from_message(message: pb.SteerOutcome) -> SteerOutcome:
    """The outcome in `message`; raises `InvalidMessage`."""
    return SteerOutcome(
        submission_run_id=message.submission_run_id,
        mode=word_of(_STEER_WORDS, message.mode, "mode"),
        accepted=message.accepted,
        reason=message.reason if message.HasField("reason") else None,
    )
