"""Which model answers when nobody names one, in one line for a person."""

from __future__ import annotations

from typing import Final

import anyio

from coding_agent.services import Models
from lemon_ai import AIError
from lemon_core.errors import LemonError
from lemon_core.logs import get_logger

log = get_logger(__name__)

TIMEOUT_S: Final = 1.0
LOCAL: Final = "local"


class DefaultModelInfo:
    """lemon_core's `ModelInfo` port."""

    def __init__(self, models: Models) -> None:
        self._models = models

    async def describe_default(self) -> str:
        """One line such as `openai:gpt-5`. Never raises, and answers within a second."""
        try:
            with anyio.move_on_after(TIMEOUT_S):
                return await self._describe()
        except (LemonError, AIError) as exc:
            return f"none yet: {exc}"
        except Exception as exc:  # this line is a courtesy and must not end a start
            log.exception("model_info.failed")
            return f"none yet: {type(exc).__name__}: {exc}"
        return "not known yet: the configured server has not said which models it has"

    async def _describe(self) -> str:
        choice = await self._models.choose_model()
        if choice.model.provider == LOCAL:
            return f"{choice.spec} (embedded; set OPENAI_API_KEY for a larger one)"
        return f"{choice.spec} ({choice.notice})" if choice.notice else choice.spec
