"""A section that some app contributes."""

from __future__ import annotations

from typing import Annotated

from lemon_core.config.fields import PROJECT_SAFE, Positive, Section


class Pantry(Section):
    """A section at the top; a project may choose the label."""

    shelves: Positive = 3
    label: Annotated[str, PROJECT_SAFE] = "dry"
