"""What `--session` means."""

from __future__ import annotations

from lemon_cli.errors import CliError, ExitCode
from lemon_core import session_key as session_keys
from lemon_core.ids import new_uuid
from lemon_core.session_key import InvalidSessionKey


def session_key_of(session: str | None, agent: str | None) -> str:
    """A session key as it is, a word as a side session of the agent, nothing as a fresh one.

    Raises `CliError` with the usage code for anything else, and for a key of another agent.
    """
    owner = agent or "default"
    try:
        if session is None:
            return session_keys.main(owner, sub_id=new_uuid()[:8])
        if ":" not in session:
            return session_keys.main(owner, sub_id=session)
        named = session_keys.parse(session).agent_id
    except InvalidSessionKey as exc:
        raise CliError(f"--session: {exc}", ExitCode.USAGE) from exc
    if agent is not None and named != agent:
        raise CliError(
            f"--session {session} belongs to agent {named!r}, not to {agent!r}", ExitCode.USAGE
        )
    return session


def session_word(session_key: str) -> str:
    """The shortest text that `--session` takes for this key."""
    parsed = session_keys.parse(session_key)
    if parsed.kind == "main" and parsed.agent_id == "default" and parsed.sub_id:
        return parsed.sub_id
    return session_key
