"""The routes of phone calls: what the service asks for, and the socket of the media stream.

The requests carry Twilio's signature (`security.py`), the socket the token that the answer to a
signed request gave out.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Final
from urllib.parse import urlsplit
from xml.sax.saxutils import quoteattr

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Route, WebSocketRoute
from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from lemon_core.logs import get_logger
from lemon_gateway.twilio_signature import (
    Arrival,
    form_fields,
)
from lemon_gateway.voice.calls import Calls, Ticket
from lemon_gateway.voice.errors import ProviderFailed
from lemon_gateway.voice.line import LineClosed
from lemon_gateway.voice.recordings import Recording
from lemon_gateway.voice.security import VoiceSecurity
from lemon_gateway.voice.stream import MediaStreams

PATH: Final = "/webhooks/twilio/voice"
RECORDING_PATH: Final = f"{PATH}/recording"
# A parameter of a stream may have 500 characters, its name included.
MAX_PARAMETER: Final = 400

Form = dict[str, str]

log = get_logger("lemon_gateway.voice.endpoint")


class VoiceEndpoint:
    """The routes.

    `keep` takes a recording that is to be fetched, and says whether it can; `number` is the one
    that is called where a request does not say.
    """

    def __init__(
        self,
        security: VoiceSecurity,
        calls: Calls,
        streams: MediaStreams,
        keep: Callable[[Recording], bool],
        number: str = "",
    ) -> None:
        self._security, self._calls, self._streams, self._keep = security, calls, streams, keep
        self._number = number

    def routes(self) -> Sequence[BaseRoute]:
        """All of them."""
        return (
            Route(PATH, self._signed(self._call), methods=["POST"]),
            Route(f"{PATH}/status", self._signed(self._status), methods=["POST"]),
            Route(RECORDING_PATH, self._signed(self._recording), methods=["POST"]),
            WebSocketRoute(f"{PATH}/stream", self._stream),
        )

    def _signed(
        self, answer: Callable[[Arrival, Form], Response]
    ) -> Callable[[Request], Awaitable[Response]]:
        async def checked(request: Request) -> Response:
            arrival = Arrival.of(request)
            try:
                fields = form_fields(await request.body())
            except ValueError:
                return JSONResponse({"error": "invalid form"}, status_code=400)
            why = self._security.refusal(arrival, fields)
            if why is not None:
                log.warning("voice.request_refused", path=arrival.path, reason=why)
                return JSONResponse({"error": "unauthorized"}, status_code=401)
            # Of a repeated field the first counts, as everywhere in forms.
            return answer(arrival, dict(reversed(fields)))

        return checked

    def _call(self, arrival: Arrival, form: Form) -> Response:
        base_url = self._security.base_url(arrival)
        if base_url is None:
            log.warning("voice.request_refused", reason="missing_url")
            return JSONResponse({"error": "unknown public address"}, status_code=400)
        call_sid, caller, callee = (
            form.get(name, "").strip()[:MAX_PARAMETER] for name in ("CallSid", "From", "To")
        )
        callee = callee or self._number
        token = self._calls.admit(Ticket(call_sid, caller, callee, base_url))
        log.info("voice.call_offered", call_sid=call_sid)
        parameters = {"callSid": call_sid, "from": caller, "to": callee, "token": token}
        return Response(twiml(stream_url(base_url), parameters), media_type="application/xml")

    def _status(self, arrival: Arrival, form: Form) -> Response:
        log.info(
            "voice.call_status",
            call_sid=form.get("CallSid", "")[:MAX_PARAMETER],
            status=form.get("CallStatus", "")[:MAX_PARAMETER],
        )
        return PlainTextResponse("OK")

    def _recording(self, arrival: Arrival, form: Form) -> Response:
        if form.get("RecordingStatus") == "completed":
            try:
                recording = Recording.of_form(form)
            except ProviderFailed as exc:
                log.warning("voice.recording_refused", error=str(exc))
            else:
                if not self._keep(recording):
                    log.warning("voice.recording_not_fetched", call_sid=recording.call_sid)
        return PlainTextResponse("OK")

    async def _stream(self, websocket: WebSocket) -> None:
        await websocket.accept()
        await self._streams.serve(ServerSocket(websocket), websocket.query_params)


def stream_url(base_url: str) -> str:
    """Where the media stream of a call goes."""
    parts = urlsplit(base_url)
    scheme = "wss" if parts.scheme == "https" else "ws"
    return f"{scheme}://{parts.netloc}{parts.path.rstrip('/')}{PATH}/stream"


def twiml(url: str, parameters: Form) -> str:
    """The answer to a call: connect it to the stream at `url`, which is told `parameters`."""
    told = "".join(
        f"<Parameter name={_attribute(name)} value={_attribute(value)}/>"
        for name, value in parameters.items()
    )
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        f"<Response><Connect><Stream url={_attribute(url)}>{told}</Stream></Connect></Response>"
    )


def _attribute(text: str) -> str:
    # XML has no form for control characters.
    return quoteattr("".join(filter(str.isprintable, text)))


class ServerSocket:
    """A Starlette WebSocket as the stream takes it."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket

    async def receive(self) -> str | None:
        """The next message's text, empty for one without; None when the socket is closed."""
        if self._websocket.client_state is not WebSocketState.CONNECTED:
            return None
        message = await self._websocket.receive()
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("text") or ""

    async def send(self, text: str) -> None:
        """Send a message; raises `LineClosed`."""
        try:
            await self._websocket.send_text(text)
        except (WebSocketDisconnect, RuntimeError, OSError) as exc:
            raise LineClosed from exc

    async def close(self, code: int) -> None:
        """Close it, whatever its state."""
        try:
            await self._websocket.close(code)
        except (WebSocketDisconnect, RuntimeError, OSError):
            return  # it is closed already
