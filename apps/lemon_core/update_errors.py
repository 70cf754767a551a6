"""What keeps an update from being found or installed; the version in use stays as it was."""

from __future__ import annotations

from lemon_core.errors import LemonError


class UpdateError(LemonError):
    """Base: the update did not happen; the message says what was tried and what to do."""

    code = "update_failed"


class UpdateRefused(UpdateError):
    """This installation, or what was asked for, cannot be updated this way."""

    code = "update_refused"


class UpdateUnavailable(UpdateError):
    """The source of updates cannot be reached, or answers with something unusable."""

    code = "update_unavailable"


class ArtifactRefused(UpdateError):
    """What was downloaded is not what was announced, or is not safe to unpack."""

    code = "update_artifact_refused"
