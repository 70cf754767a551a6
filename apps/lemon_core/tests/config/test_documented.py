"""`docs/configuration.md` lists every key as it is."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from pydantic import BaseModel

from lemon_core.config import keys
from lemon_core.config.model import LemonConfig
from lemon_core.config.variables import VARIABLES

GUIDE = "docs/configuration.md"


def documented() -> dict[tuple[str, str], tuple[str, str]]:
    """Default and variable by section and key, from the tables of the guide."""
    root = next(folder for folder in Path(__file__).parents if (folder / GUIDE).is_file())
    section, found = "", {}
    for line in (root / GUIDE).read_text("utf-8").splitlines():
        if heading := re.fullmatch(r"### `\[+([^\]]+)\]+`", line):
            section = heading[1]
        elif section and (row := re.fullmatch(r"\| `(\w+)` \| .+ \| (.+) \| (.+) \|", line)):
            found[section, row[1]] = (row[2].strip("`"), row[3].strip("`"))
    return found


def modelled(model: type[BaseModel], section: str = "") -> Iterator[tuple[tuple[str, str], object]]:
    """Section, key and default of every key of `model`; rows of tables under `<name>`."""
    for name, info in model.model_fields.items():
        path = f"{section}.{name}" if section else name
        inner = keys.section_model(info.annotation)
        row = None if inner else keys.row_model(info.annotation)
        if inner is not None:
            yield from modelled(inner, path)
        elif row is not None:
            is_table = "Mapping" in str(info.annotation)
            yield from modelled(row, f"{path}.<name>" if is_table else path)
        else:
            default = info.get_default(call_default_factory=True)
            yield (section, name), "required" if info.is_required() else default


def test_the_guide_lists_every_key_with_its_default_and_variable() -> None:
    variables = {(".".join(row.path[:-1]), row.path[-1]): row.name for row in VARIABLES}
    guide = documented()
    model = dict(modelled(LemonConfig))
    assert set(guide) == set(model)
    for place, default in model.items():
        said, variable = guide[place]
        assert variable == variables.get(place, "–"), place
        if default is None:
            assert said == "–", place
        elif default == "required":
            assert said == "required", place
        elif isinstance(default, str | int | float):
            assert said == json.dumps(default), place
