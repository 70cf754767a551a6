"""What apps add to the doctor (specification lemon_core 14, behaviour 39)."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

import pytest

from lemon_core.capabilities import Capabilities
from lemon_core.doctor import Check, DoctorArea, DoctorCheck, DoctorContext, Finding, checks, passed
from lemon_core.doctor.checks import BUILT_IN, DOCTOR_CHECKS, contributed_areas, run_doctor
from lemon_core.profiles import Profile, parse_profile, render_profile
from lemon_core.tests.doctor.scene import Scene

pytestmark = pytest.mark.anyio


async def good(context: DoctorContext) -> Finding:
    return passed(f"looked at {context.project_dir.name}")


async def crashing(context: DoctorContext) -> Finding:
    raise RuntimeError("https://me:pw@host is down")


async def told(context: DoctorContext) -> Mapping[str, object]:
    return {"count": 1}


AREA = DoctorArea("fake", ("everything",), told)
CHECKS = (DoctorCheck("fake.good", good), AREA)
ONE = DoctorCheck("fake.one", good)


async def contributed(scene: Scene, *given: object) -> tuple[Check, ...]:
    report = await run_doctor(scene.context(), given)
    return report.checks[len(BUILT_IN) :]


@pytest.mark.behaviour("lemon_core.39")
async def test_a_crashing_check_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.ERROR, logger="lemon"):
        bad, after = await contributed(
            Scene(tmp_path), DoctorCheck("fake.bad", crashing), DoctorCheck("fake.good", good)
        )
    assert (bad.name, bad.status) == ("fake.bad", "warn")
    assert bad.message == "the check itself failed: RuntimeError: https://[REDACTED]@host is down"
    assert after == Check("fake.good", "pass", "looked at project")
    assert [record.message for record in caplog.records] == ["doctor.check_crashed"]


@pytest.mark.behaviour("lemon_core.39")
async def test_a_hanging_check_is_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import anyio

    async def hanging(context: DoctorContext) -> Finding:
        await anyio.sleep_forever()
        return passed("never")

    # A time that is over at once, so that nobody has to wait.
    monkeypatch.setattr(checks, "CHECK_TIMEOUT_S", 0.0)
    looked = await checks._looked(Scene(tmp_path).context(), DoctorCheck("fake.hang", hanging))
    assert (looked.name, looked.status) == ("fake.hang", "warn")


async def test_a_runtime_hands_in_what_its_components_contributed(tmp_path: Path) -> None:
    capabilities = Capabilities()
    capabilities.contribute(DOCTOR_CHECKS, ONE)
    capabilities.contribute(DOCTOR_CHECKS, AREA)
    given = capabilities.contributions(DOCTOR_CHECKS)
    assert await contributed(Scene(tmp_path), *given) == (
        Check("fake.one", "pass", "looked at project"),
    )
    assert contributed_areas(Scene(tmp_path).context(), given) == [AREA]


async def test_a_profile_names_what_apps_add(tmp_path: Path) -> None:
    here = __name__
    profile = Profile("x", doctor_checks=(f"{here}:CHECKS", f"{here}:ONE"))
    scene = Scene(tmp_path, profile=profile)
    assert [check.name for check in await contributed(scene)] == ["fake.good", "fake.one"]
    assert contributed_areas(scene.context()) == [AREA]


async def test_an_app_that_is_not_installed_is_skipped(tmp_path: Path) -> None:
    scene = Scene(tmp_path, profile=Profile("x", doctor_checks=("no_such_app.doctor:CHECKS",)))
    assert await contributed(scene) == (
        Check("no_such_app", "skip", "not part of this installation"),
    )


async def test_an_app_that_cannot_be_imported_warns(tmp_path: Path) -> None:
    scene = Scene(tmp_path, profile=Profile("x", doctor_checks=(f"{__name__}:NOTHING",)))
    (check,) = await contributed(scene)
    assert (check.name, check.status) == ("lemon_core", "warn")
    assert "NOTHING" in check.message


async def test_a_section_whose_app_is_missing_does_not_stop_the_doctor(tmp_path: Path) -> None:
    profile = Profile("x", config_sections={"gone": "no_such_app.config:Section"})
    scene = Scene(tmp_path, profile=profile)
    scene.write({"home/.lemon/config.toml": "[gone]\na = 1\n[tui]\ndebug = 3\n"})
    found = await scene.look("config.global_valid")
    assert found.status == "fail"
    assert "the profile x is not whole: No module named 'no_such_app'" in found.message
    assert "config.toml:4: tui.debug: must be true or false" in found.message


def test_a_profile_keeps_its_doctor_checks() -> None:
    profile = parse_profile("name = 'x'\ndoctor_checks = ['a.doctor:CHECKS']", where="x")
    assert profile.doctor_checks == ("a.doctor:CHECKS",)
    assert parse_profile(render_profile(profile), where="x") == profile
