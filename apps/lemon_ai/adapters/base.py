"""The contract between the client and a wire API's adapter."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from lemon_ai.events import Event
from lemon_ai.partial import PartialMessage
from lemon_ai.types import Context, Model, StreamOptions

if TYPE_CHECKING:
    from lemon_ai.transport import Transport


@dataclass(frozen=True, slots=True)
class AdapterRequest:
    """One model call, with everything resolved: `base_url` and `api_key` belong together.

    `env` holds the variables that the client may read.
    """

    model: Model
    context: Context
    options: StreamOptions
    base_url: str
    api_key: str | None = field(repr=False)
    partial: PartialMessage
    transport: Transport
    env: Mapping[str, str] = field(default_factory=dict, repr=False)


class Adapter(Protocol):
    """One wire API. An instance is shared by all calls of a client."""

    def events(self, request: AdapterRequest) -> AsyncGenerator[Sequence[Event], None]:
        """Batches of block events and one terminal event, without `StreamStart`.

        Provider failures end as `StreamError`; anything raised becomes one. Blocks are written
        through `request.partial`.
        """
        ...
