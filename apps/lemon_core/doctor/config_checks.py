"""Are the configuration files there, and do they mean something?"""

from __future__ import annotations

from pathlib import Path

from lemon_core.doctor.context import DoctorContext
from lemon_core.doctor.report import Finding, failed, passed, skipped, warned

_MEND = "correct the named lines; lemon config validate shows them again"


async def global_exists(context: DoctorContext) -> Finding:
    """A missing global file is fine for a first try and nothing more."""
    path = context.paths.config_file
    if path.exists():
        return passed(f"{path} is there")
    return warned(
        f"{path} is not there: defaults apply", "write it when a default does not suit you"
    )


async def global_valid(context: DoctorContext) -> Finding:
    """What the global file, `.env` and the variables say."""
    project = context.project_file
    # In the home directory the project's file is the global one, and its problems belong here.
    if _is_same(project, context.paths.config_file):
        errors, warnings = list(context.errors), list(context.warnings)
    else:
        errors = [line for line in context.errors if not _is_of(line, project)]
        warnings = [line for line in context.warnings if not _is_of(line, project)]
    if errors:
        return failed("\n".join((*errors, *warnings)), _MEND)
    if warnings:
        return warned("\n".join(warnings), "correct or delete what is named")
    if not context.paths.config_file.exists():
        return skipped(f"{context.paths.config_file} is not there")
    return passed("every value has a meaning")


async def project_valid(context: DoctorContext) -> Finding:
    """What the project's file says, if the project has one of its own."""
    path = context.project_file
    if not path.exists() or _is_same(path, context.paths.config_file):
        return skipped(f"{context.project_dir} has no .lemon/config.toml")
    errors = [line for line in context.errors if _is_of(line, path)]
    warnings = [line for line in context.warnings if _is_of(line, path)]
    if errors:
        return failed("\n".join((*errors, *warnings)), _MEND)
    if warnings:
        return warned("\n".join(warnings), _project_remedy(context, warnings))
    return passed(f"every value of {path} has a meaning")


def _project_remedy(context: DoctorContext, warnings: list[str]) -> str:
    if any("may not set" in line for line in warnings):
        return f"if you trust the project: lemon config trust {context.project_dir}"
    return "correct or delete what is named"


def _is_of(line: str, path: Path) -> bool:
    return line.startswith((f"{path}:", f"{path} "))


def _is_same(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except OSError:
        return False
