"""What a script asks of its helpers, answered with the run's own tools.

The tools are those that the run itself would call, behind the same policy and the same approvals.
What comes from a kernel is a script's word: it carries the cell's token, its numbers only grow, and
how much it may ask for is bounded.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Mapping
from typing import Any, Final

from lemon_agent import AgentTool, AgentToolResult, ToolCallContext, ToolError
from lemon_agent.arguments import Validator, coerce_arguments
from lemon_core.config.tools import ExecuteCode
from lemon_core.logs import get_logger

log = get_logger(__name__)

HELPERS: Final = ("read", "grep", "find", "ls", "webfetch")
_FOREIGN: Final = frozenset({"webfetch"})


def helper_names(settings: ExecuteCode) -> tuple[str, ...]:
    """The helpers that scripts have; the configuration can only take some away."""
    return tuple(name for name in HELPERS if not settings.tools or name in settings.tools)


class HelperCalls:
    """The calls of one script, on behalf of the `call` that runs it.

    `tools` holds those helpers that the policy permits. `has_foreign` tells that what the script
    prints may come from outside.
    """

    def __init__(
        self, call: ToolCallContext, tools: Mapping[str, AgentTool], settings: ExecuteCode
    ) -> None:
        self._call, self._tools, self._settings = call, tools, settings
        self._names = helper_names(settings)
        self._last_id = 0
        self._count = self._denied = self._errors = self._bytes = 0
        self._used: set[str] = set()
        self.token = secrets.token_hex(32)
        self.has_foreign = False

    def details(self) -> dict[str, object]:
        """What was asked, in numbers."""
        return {
            "rpc_calls": self._count,
            "rpc_denied": self._denied,
            "rpc_errors": self._errors,
            "rpc_bytes": self._bytes,
            "rpc_tools": sorted(self._used),
        }

    async def answer(self, frame: Mapping[str, Any]) -> Mapping[str, object]:
        """The answer to one call: `text`, or `error`, which the script can catch."""
        self._count += 1
        name = str(frame.get("tool"))
        refusal = self._refusal(frame, name)
        if refusal is not None:
            self._denied += 1
            return {"error": refusal}
        try:
            text = await self._result_of(name, frame.get("args"))
        except _Denied as exc:
            self._denied += 1
            return {"error": str(exc)}
        except ToolError as exc:
            self._errors += 1
            return {"error": f"{name}: {exc}"}
        except Exception as exc:  # a tool's fault is one failed call of the script
            log.exception("execute_code.helper_failed", tool=name)
            self._errors += 1
            return {"error": f"{name}: {type(exc).__name__}: {exc}"}
        return {"text": text}

    def _refusal(self, frame: Mapping[str, Any], name: str) -> str | None:
        token, number = frame.get("token"), frame.get("id")
        if not isinstance(token, str) or not hmac.compare_digest(
            token.encode(errors="replace"), self.token.encode()
        ):
            return "this call does not come from the helpers of the running script"
        if not isinstance(number, int) or number <= self._last_id:
            return "this call was made before"
        self._last_id = number
        if self._count > self._settings.max_rpc_calls:
            return f"a script may call its helpers {self._settings.max_rpc_calls} times"
        if name not in self._names:
            return f"there is no helper {name} (there are: {', '.join(self._names) or 'none'})"
        if name not in self._tools:
            return f"the policy of this run does not allow {name}"
        return None

    async def _result_of(self, name: str, given: object) -> str:
        tool = self._tools[name]
        if not isinstance(given, Mapping):
            raise ToolError("the arguments are no mapping")
        arguments = coerce_arguments(_said(given), tool.parameters)
        if problems := Validator(tool.parameters).errors(arguments):
            raise ToolError("; ".join(problems))
        self._used.add(name)
        self.has_foreign = self.has_foreign or name in _FOREIGN
        result = await tool.execute(
            ToolCallContext(
                f"{self._call.tool_call_id}/{self._last_id}",
                arguments,
                self._call.signal,
                lambda _: None,
                self._call.cwd,
                self._call.run,
            )
        )
        self.has_foreign = self.has_foreign or result.trust == "untrusted"
        return self._text(name, result)

    def _text(self, name: str, result: AgentToolResult) -> str:
        if result.is_error:
            raise _Denied(result.text) if _was_refused(result) else ToolError(result.text)
        if not result.text:
            raise ToolError("there is no text in what it gives")
        self._bytes += len(result.text.encode(errors="replace"))
        limit = self._settings.max_rpc_result_bytes
        if self._bytes > limit:
            raise _Denied(f"{name}: helpers give a script {limit} bytes in all")
        return result.text


class _Denied(ToolError):
    """A call that was not answered for another reason than its own failure."""


def _said(given: Mapping[str, Any]) -> dict[str, Any]:
    """None is how Python says that an argument is left out."""
    return {str(name): value for name, value in given.items() if value is not None}


def _was_refused(result: AgentToolResult) -> bool:
    details = result.details if isinstance(result.details, Mapping) else {}
    return str(details.get("reason", "")).startswith("approval_")
