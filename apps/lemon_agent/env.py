"""Which environment variables the models read, as declarations of core's register.

lemon_ai may not know core: its list of variables is translated here.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lemon_agent.runtime.names import NAMES
from lemon_ai.env import DECLARATIONS as VARIABLES
from lemon_core.config.declarations import EnvDeclaration

AREA: Final = "models"


def _all() -> Iterator[EnvDeclaration]:
    known = set()
    for variable in VARIABLES:
        known.add(variable.name)
        yield EnvDeclaration(
            name=f"{AREA}.{variable.name.lower()}",
            env_var=variable.name,
            type=variable.type,
            default=variable.default,
            doc=variable.doc,
            secret=variable.secret,
            area=AREA,
            apps=("lemon_ai",),
        )
    for row in NAMES.values():
        for name in row.variables:
            if name not in known:
                known.add(name)
                yield EnvDeclaration(
                    name=f"{AREA}.{name.lower()}",
                    env_var=name,
                    doc=f"Key of provider {row.canonical}.",
                    secret=True,
                    area=AREA,
                    apps=("lemon_agent",),
                )


DECLARATIONS: Final = tuple(_all())
