"""What the slash commands do."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Final, cast

from anyio.abc import TaskGroup

from lemon_cli.chat.attachments import load_image
from lemon_cli.chat.conversation import Conversation
from lemon_cli.chat.markdown_blocks import blocks_of
from lemon_cli.chat.shown import Block, Note, Said, Text
from lemon_cli.chat.slash import Call, help_text
from lemon_cli.chat.spent import context, dollars, tokens
from lemon_cli.errors import CliError
from lemon_cli.session_name import session_key_of, session_word
from lemon_cli.work_text import question_lines, session_lines, session_text
from lemon_core.ids import now_ms
from lemon_core.router_views import SessionView
from lemon_core.runs import QUEUE_MODES, THINKING_LEVELS, QueueMode
from lemon_core.store.wrappers import UNSET

SCOPES: Final = ("once", "session", "agent", "global")
SESSION_LIMIT: Final = 20
TAKE_BACK: Final = "-"


class SlashCommands:
    """The commands of `slash.COMMANDS` that send nothing; they raise `LemonError`."""

    async def welcome(self, chat: Conversation) -> None:
        """Say which session this is, and how far it got."""
        await welcome(chat)

    async def carry_out(self, chat: Conversation, call: Call, tasks: TaskGroup) -> None:
        """Do what a command asks for."""
        if call.name == "abort":
            chat.abort(tasks, "aborting")
        elif call.name == "drop":
            await chat.drop()
        else:
            await _WORK[call.name](chat, call.rest)


async def _help(chat: Conversation, rest: str) -> None:
    chat.show([Text(help_text())])


async def _model(chat: Conversation, rest: str) -> None:
    key = chat.settings.session_key
    if not rest:
        view = await chat.service.session(key)
        chosen = chat.settings.model or (view.model if view else None)
        known = chosen or chat.transcript.model or await chat.service.default_model()
        chat.show([Text(f"model  {known or 'the configured default'}")])
        return
    model = None if rest == TAKE_BACK else rest
    kept = await chat.service.choose(key, model=model, thinking_level=UNSET)
    chat.settings.model = None
    chat.transcript.model = kept.model
    chat.show([Note(f"this session's model: {kept.model or 'the configured default'}")])


async def _thinking(chat: Conversation, rest: str) -> None:
    key = chat.settings.session_key
    if not rest:
        view = await chat.service.session(key)
        level = chat.settings.thinking or (view.thinking_level if view else None)
        chat.show([Text(f"thinking  {level or 'the configured default'}")])
        return
    level = None if rest == TAKE_BACK else rest
    if level is not None and level not in THINKING_LEVELS:
        raise CliError(f"/thinking {rest}: use one of {', '.join(THINKING_LEVELS)}")
    kept = await chat.service.choose(key, model=UNSET, thinking_level=level)
    chat.settings.thinking = None
    told = kept.thinking_level or "the configured default"
    chat.show([Note(f"this session's thinking: {told}")])


async def _session(chat: Conversation, rest: str) -> None:
    if rest:
        await switch(chat, session_key_of(rest, None))
        return
    key = chat.settings.session_key
    view = await chat.service.session(key)
    text = f"session  {session_word(key)} (nothing finished in it yet)"
    chat.show([Text(session_text(view, now_ms(), full=False) if view else text)])


async def _new(chat: Conversation, rest: str) -> None:
    await switch(chat, session_key_of(None, chat.settings.agent))


async def switch(chat: Conversation, session_key: str) -> None:
    """Go on in another session; runs of the one before are still shown to their end."""
    settings = chat.settings
    if settings.session_key != session_key:
        settings.session_key, settings.agent = session_key, None
        chat.transcript.model = None
        chat.transcript.spent.context_tokens = None
    await welcome(chat)


async def welcome(chat: Conversation) -> None:
    """Say which session this is, and how far it got."""
    word = session_word(chat.settings.session_key)
    view = await chat.service.session(chat.settings.session_key)
    if view is None or not view.runs:
        note = f"session {word} (continue later with lemon chat --session {word})"
        chat.show([Note(note)])
    else:
        count = view.info.run_count
        chat.show([Note(f"session {word}, {count} {'run' if count == 1 else 'runs'} so far")])
        _show_last(chat, view)
    await _learn_model(chat, view)


async def _learn_model(chat: Conversation, view: SessionView | None) -> None:
    """Which model will answer, for the line below the input."""
    told = (view and view.model) or await chat.service.default_model() or ""
    name, _, _ = told.partition(" ")
    # A default that is not known comes as words.
    if chat.transcript.model is None and ":" in name:
        chat.transcript.model = name
        await chat.learn_window()


def _show_last(chat: Conversation, view: SessionView) -> None:
    """The last exchange, to go on from."""
    last = view.runs[0]
    if last.prompt and last.completion is not None:
        answer = last.completion.answer
        chat.show([Said(last.prompt), *map(Block, blocks_of(answer or ""))])


async def _sessions(chat: Conversation, rest: str) -> None:
    found = await chat.service.sessions(SESSION_LIMIT)
    chat.show([Text(session_lines(found, now_ms())) if found else Note("no sessions yet")])


async def _queue(chat: Conversation, rest: str) -> None:
    if rest:
        if rest not in QUEUE_MODES:
            raise CliError(f"/queue {rest}: use one of {', '.join(QUEUE_MODES)}")
        chat.settings.mode = cast(QueueMode, rest)
        chat.show([Note(f"messages to a working run: {rest}")])
        return
    waiting = chat.transcript.live().waiting
    lines = [f"mode  {chat.settings.mode}", *(f"{i}. {t}" for i, t in enumerate(waiting, 1))]
    chat.show([Text("\n".join(lines if waiting else [*lines, "nothing waits"]))])


async def _approvals(chat: Conversation, rest: str) -> None:
    found = await chat.service.questions()
    chat.show([Text(question_lines(found, now_ms())) if found else Note("nothing waits")])


async def _approve(chat: Conversation, rest: str) -> None:
    approval_id, _, scope = rest.partition(" ")
    scope = scope.strip() or "once"
    if scope not in SCOPES:
        raise CliError(f"/approve: {scope!r} is none of {', '.join(SCOPES)}")
    await _resolve(chat, approval_id, f"approve_{scope}")


async def _deny(chat: Conversation, rest: str) -> None:
    await _resolve(chat, rest, "deny")


async def _resolve(chat: Conversation, approval_id: str, decision: str) -> None:
    if not approval_id:
        raise CliError("which one? /approvals lists them")
    if not await chat.service.answer(approval_id, decision):
        raise CliError(f"approval {approval_id} is not open: answered, expired or unknown")
    chat.show([Note(f"{approval_id} is {'denied' if decision == 'deny' else 'allowed'}")])


async def _image(chat: Conversation, rest: str) -> None:
    if not rest:
        raise CliError("/image needs the path of a picture")
    settings = chat.settings
    settings.images.append(load_image(rest.strip('"'), settings.cwd, settings.home))
    names = ", ".join(each.name for each in settings.images)
    chat.show([Note(f"with the next message: {names}")])


async def _status(chat: Conversation, rest: str) -> None:
    settings, live = chat.settings, chat.transcript.live()
    model = settings.model or chat.transcript.model or await chat.service.default_model()
    active = chat.transcript.active
    rows = [
        ("in", chat.service.where),
        ("session", session_word(settings.session_key)),
        ("model", model or "the configured default"),
        ("directory", str(settings.cwd)),
        ("working", active.run_id if active else "no"),
        ("waiting", str(len(live.waiting))),
        ("queue", settings.mode),
    ]
    chat.show([Text("\n".join(f"{name:<9}  {value}" for name, value in rows))])


async def _usage(chat: Conversation, rest: str) -> None:
    spent, model = chat.transcript.spent, chat.transcript.model
    window = chat.transcript.windows.get(model or "")
    parts = [f"{spent.turns} {'turn' if spent.turns == 1 else 'turns'}", tokens(spent)]
    parts.append("cost unknown" if spent.cost_usd is None else dollars(spent.cost_usd))
    if gauge := context(spent.context_tokens, window):
        parts.append(gauge)
    chat.show([Text(" · ".join(parts))])


_WORK: Final[Mapping[str, Callable[[Conversation, str], Awaitable[None]]]] = {
    "help": _help,
    "model": _model,
    "thinking": _thinking,
    "session": _session,
    "sessions": _sessions,
    "new": _new,
    "queue": _queue,
    "approvals": _approvals,
    "approve": _approve,
    "deny": _deny,
    "image": _image,
    "status": _status,
    "usage": _usage,
}
