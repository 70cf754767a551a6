"""What the control plane stored, at the next start (specification lemon_core 10.1, 13)."""

from __future__ import annotations

import anyio
import pytest

from lemon_core.boot import boot
from lemon_core.profiles import Profile
from lemon_core.store.system_config import SYSTEM_CONFIG, SystemConfigStore
from lemon_core.testing import scrubbed_environ, temp_home

pytestmark = pytest.mark.anyio


@pytest.mark.behaviour("lemon_core.28")
async def test_stored_overrides_count_from_the_next_start() -> None:
    with temp_home() as paths, anyio.fail_after(5):
        paths.state_dir.mkdir(exist_ok=True)
        paths.config_file.write_text("[gateway]\nmax_concurrent_runs = 3\nhealth_port = 1\n")
        environ = scrubbed_environ(paths.home, {"LEMON_GATEWAY_HEALTH_PORT": "2"})
        profile = Profile("test")
        async with boot(
            profile, cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            assert runtime.config.gateway.max_concurrent_runs == 3
            overrides = SystemConfigStore(runtime.store)
            await overrides.put("gateway.max_concurrent_runs", 7)
            await overrides.put("gateway.health_port", 8)
            # As an older release may have left it.
            await runtime.store.put(SYSTEM_CONFIG, "gateway.gone", 1)
        async with boot(
            profile, cwd=paths.home, environ=environ, paths=paths, serve=False
        ) as runtime:
            assert runtime.config.gateway.max_concurrent_runs == 7
            assert runtime.config.gateway.health_port == 2
            assert runtime.warnings == ("stored override gateway.gone: unknown key; ignored",)
