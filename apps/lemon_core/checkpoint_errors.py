"""What keeps a checkpoint from being made, read or restored."""

from __future__ import annotations

from lemon_core.errors import LemonError


class CheckpointError(LemonError):
    """Base: checkpoints cannot be kept or read now; the message names the path and the fault."""

    code = "checkpoint_failed"


class CheckpointNotFound(CheckpointError):
    """There is no checkpoint of this id."""

    code = "checkpoint_not_found"

    def __init__(self, checkpoint_id: str) -> None:
        super().__init__(f"there is no checkpoint {checkpoint_id}")
        self.checkpoint_id = checkpoint_id


class CheckpointRefused(CheckpointError):
    """What was asked for is not allowed, or makes no sense; nothing was changed."""

    code = "checkpoint_refused"


class CheckpointDamaged(CheckpointError):
    """The file of a checkpoint is not what was written there."""

    code = "checkpoint_damaged"
