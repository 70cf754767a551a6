"""One prompt, one text: for apps that have no other business with models."""

from __future__ import annotations

from lemon_agent.errors import AgentError
from lemon_agent.runtime import ModelRuntime, NoModel, UnknownModel
from lemon_ai import AIError, Context, ModelError, StreamOptions, UserMessage


class TextGenerationError(AgentError):
    """No text came of it; `reason` is the model's own error code, where it was the model."""

    code = "ai_exception"

    def __init__(self, message: str, reason: str | None = None) -> None:
        super().__init__(message)
        self.reason = reason or self.code


class ModelNotFound(TextGenerationError):
    """Nobody is known to have the model."""

    code = "model_not_found"


async def complete_text(
    models: ModelRuntime,
    provider: str,
    model_id: str,
    prompt: str,
    system_prompt: str | None = None,
    options: StreamOptions | None = None,
) -> str:
    """The model's answer to a prompt, as text.

    Raises `ModelNotFound`, or `TextGenerationError` when the call failed; the message is one line
    and holds no key.
    """
    try:
        choice = await models.choose_model(f"{provider}:{model_id}")
    except (UnknownModel, NoModel) as exc:
        raise ModelNotFound(str(exc)) from exc
    context = Context(system_prompt, (UserMessage(content=prompt),))
    try:
        filled = await models.build_stream_options(choice.model, options or StreamOptions())
        async with models.stream(choice.model, context, filled) as stream:
            return await stream.collect_text()
    except ModelError as exc:
        info = exc.info()
        raise TextGenerationError(info.message, info.code or info.category) from exc
    except AIError as exc:
        raise TextGenerationError(str(exc)) from exc
