"""Resume tokens and conversation keys (specification lemon_core 3.3 and 3.4)."""

from __future__ import annotations

import pytest

from lemon_core.resume import (
    ChatState,
    ResumeToken,
    extract_resume,
    is_resume_line,
    parse_conversation_key,
    render_conversation_key,
    resume_conversation,
    session_conversation,
)


@pytest.mark.behaviour("lemon_core.4")
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("to continue: `lemon resume sess_1-a`", "sess_1-a"),
        ("LEMON RESUME abc", "abc"),
        ("codex resume abc", None),
        ("lemonade resume abc", None),
        ("lemon resume", None),
    ],
)
def test_only_native_commands_are_found(text: str, value: str | None) -> None:
    found = extract_resume(text)
    assert found == (None if value is None else ResumeToken(engine="lemon", value=value))


@pytest.mark.behaviour("lemon_core.4")
def test_a_historical_token_survives_json_but_may_not_resume() -> None:
    token = ResumeToken(engine="codex", value="abc")
    assert ResumeToken.model_validate_json(token.model_dump_json()) == token
    assert not token.may_resume_top_level()
    assert ChatState(last_engine="codex", last_resume_token="abc").native_resume() is None
    native = ChatState(last_engine="lemon", last_resume_token="s1").native_resume()
    assert native is not None
    assert native.may_resume_top_level()


def test_conversation_keys_have_one_text_form() -> None:
    token = ResumeToken(engine="lemon", value="s:1")
    for key in (session_conversation("agent:a:main"), resume_conversation(token)):
        assert parse_conversation_key(render_conversation_key(key)) == key
    for bad in ("", "session:", "resume:lemon", "other:x"):
        with pytest.raises(ValueError, match="not a conversation key"):
            parse_conversation_key(bad)


def test_a_token_is_written_as_a_command() -> None:
    """Specification lemon_core 3.4."""
    token = ResumeToken(engine="lemon", value="sess_1")
    assert token.format_plain() == "lemon resume sess_1"
    assert token.format() == "`lemon resume sess_1`"
    assert extract_resume(token.format()) == token


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("lemon resume abc", True),
        ("  `Lemon Resume a-b_c`\n", True),
        ("to continue: lemon resume abc", False),
        ("lemon resume abc please", False),
        ("lemon resume", False),
        ("codex resume abc", False),
        ("", False),
    ],
)
def test_only_a_whole_line_is_a_resume_line(line: str, expected: bool) -> None:
    """Specification lemon_core 3.4."""
    assert is_resume_line(line) is expected
