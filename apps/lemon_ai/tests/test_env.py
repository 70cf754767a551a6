"""The list of variables."""

from __future__ import annotations

import re
from pathlib import Path

import lemon_ai
from lemon_ai.env import DECLARATIONS
from lemon_ai.providers import PROVIDERS

_VARIABLE = re.compile(
    r"\"((?:LEMON|AWS|AZURE|GOOGLE|GCLOUD|CLOUDSDK|NO_GCE)_[A-Z_]*[A-Z]"
    r"|[A-Z_]+_(?:API_KEY|BASE_URL|PROXY)|HF_TOKEN)\""
)


def test_every_variable_that_a_source_names_is_declared() -> None:
    declared = {variable.name for variable in DECLARATIONS}
    folder = Path(lemon_ai.__file__).parent
    sources = [*folder.glob("*.py"), *folder.glob("adapters/*.py"), *folder.glob("catalog/*.py")]
    named = {name for file in sources for name in _VARIABLE.findall(file.read_text("utf-8"))}
    assert len(named) > 30
    assert named - declared == set()


def test_each_is_declared_once_and_says_what_it_is_for() -> None:
    names = [variable.name for variable in DECLARATIONS]
    assert len(names) == len(set(names))
    assert all(variable.doc.endswith(".") for variable in DECLARATIONS)


def test_keys_are_secret() -> None:
    secret = {variable.name for variable in DECLARATIONS if variable.secret}
    assert {name for row in PROVIDERS.values() for name in row.key_variables} <= secret
