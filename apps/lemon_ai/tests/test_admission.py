from __future__ import annotations

from collections.abc import Mapping

import anyio
import pytest

from lemon_ai import Client, Context, Model, StreamOptions
from lemon_ai.admission import UNLIMITED, Admission, AdmissionError, Limits
from lemon_ai.client import default_limits
from lemon_ai.event_stream import Release
from lemon_ai.events import StreamCanceled, StreamDone, StreamError, TerminalEvent
from lemon_ai.testing import FakeChatServer, HttpError, ScriptedAdapter, Turn, scripted_model
from lemon_ai.types import AssistantMessage, ErrorCategory, ErrorInfo


class Desk:
    """An admission whose clock the test moves, with what it told."""

    def __init__(self, limits: Limits | None = None) -> None:
        self.now = 0.0
        self.told: list[tuple[str, object]] = []
        self.admission = Admission(
            limits_of=lambda _: limits or Limits(rate=None),
            now_ms=lambda: self.now,
            emit=self._note,
        )

    def _note(self, name: str, numbers: Mapping[str, float], facts: Mapping[str, object]) -> None:
        self.told.append((name.removeprefix("lemon_ai."), facts.get("reason")))

    def enter(self, provider: str = "openai") -> Release:
        return self.admission.enter(provider)

    def call(self, terminal: TerminalEvent | None) -> None:
        self.enter()(terminal)

    def refused(self, provider: str = "openai") -> AdmissionError:
        with pytest.raises(AdmissionError) as caught:
            self.enter(provider)
        return caught.value

    def breaker_events(self) -> list[str]:
        return [name for name, _ in self.told if name.startswith("circuit_breaker.")]


def failed(category: ErrorCategory = "server") -> StreamError:
    info = ErrorInfo(category=category, message=f"{category} trouble")
    return StreamError("error", AssistantMessage(stop_reason="error", error=info))


WORKED = StreamDone("stop", AssistantMessage())


def canceled(reason: str) -> StreamCanceled:
    return StreamCanceled(reason, AssistantMessage())


def opened() -> Desk:
    desk = Desk()
    for _ in range(5):
        desk.call(failed())
    return desk


@pytest.mark.behaviour("lemon_ai.12")
def test_five_failures_in_a_row_open_the_breaker() -> None:
    desk = Desk()
    for _ in range(4):
        desk.call(failed())
    desk.call(WORKED)
    for _ in range(4):
        desk.call(failed())
    assert not desk.admission.is_open("openai")
    desk.call(failed("transient"))
    assert desk.admission.is_open("openai")
    error = desk.refused()
    assert (error.reason, error.provider, error.retry_after_ms) == (
        "circuit_open", "openai", 30_000,
    )  # fmt: skip
    assert error.last_failure == "transient trouble"
    assert "openai failed too often and rests for 30 s more" in str(error)
    assert error.info().local
    # One provider's trouble is not another's.
    desk.enter("groq")
    assert desk.breaker_events() == ["circuit_breaker.opened"]


@pytest.mark.behaviour("lemon_ai.12")
@pytest.mark.parametrize(
    "terminal",
    [
        failed("auth"),
        failed("client"),
        failed("rate_limit"),
        failed("context_length"),
        canceled("aborted"),
        canceled("redirected"),
        canceled("user_requested"),
        canceled("shutdown"),
        None,
    ],
)
def test_what_is_not_the_providers_fault_does_not_count(terminal: TerminalEvent | None) -> None:
    desk = Desk()
    for _ in range(20):
        desk.call(terminal)
    assert desk.admission.get_state("openai").failures == 0
    desk.enter()


@pytest.mark.parametrize("reason", ["timeout", "owner_down"])
def test_a_timeout_counts(reason: str) -> None:
    desk = Desk()
    for _ in range(5):
        desk.call(canceled(reason))
    assert desk.refused().last_failure == reason


@pytest.mark.behaviour("lemon_ai.12")
def test_half_open_lets_two_probes_through_and_needs_two_successes() -> None:
    desk = opened()
    desk.now = 29_999
    assert desk.refused().retry_after_ms == 1
    desk.now = 30_000
    first, second = desk.enter(), desk.enter()
    assert desk.refused().reason == "circuit_open"
    first(WORKED)
    assert desk.admission.get_state("openai").state == "half_open"
    second(WORKED)
    assert desk.admission.get_state("openai").state == "closed"
    assert desk.breaker_events() == [
        "circuit_breaker.opened",
        "circuit_breaker.half_opened",
        "circuit_breaker.closed",
    ]


@pytest.mark.behaviour("lemon_ai.12")
def test_one_failure_of_a_probe_opens_again() -> None:
    desk = opened()
    desk.now = 30_000
    desk.call(failed())
    assert desk.admission.time_until_recovery_ms("openai") == 30_000
    assert desk.breaker_events()[-1] == "circuit_breaker.reopened"
    desk.admission.reset("openai")
    desk.enter()


def test_a_probe_that_says_nothing_frees_its_place() -> None:
    desk = opened()
    desk.now = 30_000
    for _ in range(5):
        desk.call(canceled("aborted"))
    desk.call(WORKED)
    desk.call(WORKED)
    assert desk.admission.get_state("openai").state == "closed"


@pytest.mark.behaviour("lemon_ai.14")
def test_the_cap_rejects_and_lowering_it_kills_nothing() -> None:
    desk = Desk(Limits(concurrency=2, rate=None))
    first, second = desk.enter(), desk.enter()
    error = desk.refused()
    assert (error.reason, error.info().local) == ("max_concurrency", True)
    assert "2 calls under way" in str(error)
    desk.admission.set_concurrency_cap("openai", 1)
    first(WORKED)
    first(WORKED)
    assert desk.admission.get_state("openai").running == 1
    assert desk.refused().reason == "max_concurrency"
    second(failed())
    desk.enter()
    assert ("dispatcher.rejected", "max_concurrency") in desk.told
    with pytest.raises(ValueError, match="at least 1"):
        desk.admission.set_concurrency_cap("openai", 0)


@pytest.mark.behaviour("lemon_ai.14")
def test_the_bucket_rejects_at_once_and_fills_again() -> None:
    desk = Desk(Limits(concurrency=None, rate=10, burst=3))
    for _ in range(3):
        desk.call(WORKED)
    error = desk.refused()
    assert (error.reason, error.retry_after_ms, error.info().local) == ("rate_limited", 100, True)
    desk.now = 100
    desk.call(WORKED)
    assert desk.refused().reason == "rate_limited"
    desk.now = 1_000_000
    for _ in range(3):
        desk.call(WORKED)
    desk.refused()


def test_a_server_of_ones_own_has_no_limits_but_the_breaker() -> None:
    desk = Desk(UNLIMITED)
    for _ in range(100):
        desk.enter()
    for _ in range(5):
        desk.call(failed())
    assert desk.refused().reason == "circuit_open"


@pytest.mark.anyio
@pytest.mark.behaviour("lemon_ai.13")
@pytest.mark.parametrize("end", ["success", "error", "cancel", "timeout", "left early"])
async def test_a_slot_returns_and_the_socket_closes_however_a_call_ends(end: str) -> None:
    turn = {
        "success": Turn(text="hello"),
        "error": Turn(http_error=HttpError(400)),
    }.get(end, Turn(text=["a ", "b"], gate="g", gate_after=1))
    timeout_ms = 1 if end == "timeout" else 60_000
    async with FakeChatServer([turn]) as server, Client(env={}) as client:
        model = Model(
            id="m",
            api="openai_completions",
            provider="mine",
            base_url=server.base_url,
            context_window=8_000,
            max_tokens=100,
        )
        name = client.admission_name(model)
        with anyio.fail_after(5):
            options = StreamOptions(stream_timeout_ms=timeout_ms)
            async with client.stream(model, Context(), options) as events:
                assert client.admission.get_state(name).running == 1
                if end == "left early":
                    for _ in range(2):
                        await events.next_batch()
                else:
                    if end == "cancel":
                        events.cancel("aborted")
                    while await events.next_batch():
                        pass
            assert client.admission.get_state(name).running == 0
            server.gate("g").open()
            await server.wait_idle()


@pytest.mark.anyio
async def test_a_refused_call_is_refused_on_entry_and_vendors_alone_have_limits() -> None:
    async with Client(env={}, adapters={"scripted": ScriptedAdapter([Turn(text="hi")])}) as client:
        model = scripted_model()
        client.admission.set_concurrency_cap(client.admission_name(model), 1)
        async with client.stream(model, Context()):
            with pytest.raises(AdmissionError, match="scripted has 1 calls under way"):
                async with client.stream(model, Context()):
                    raise AssertionError
    vendor = Model(id="m", api="a", provider="openai", base_url="https://api.openai.com/v1")
    elsewhere = vendor.model_copy(update={"base_url": "http://127.0.0.1:1/v1"})
    assert client.admission_name(vendor) == "openai"
    assert default_limits("openai").concurrency == 10
    assert client.admission_name(elsewhere) == "openai at http://127.0.0.1:1/v1"
    assert default_limits(client.admission_name(elsewhere)).concurrency is None
    assert default_limits("ollama").rate is None
