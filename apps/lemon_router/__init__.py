"""Every message that Lemon accepts ends as something, exactly once."""

from lemon_router.policy import Caller
from lemon_router.router import Router

__all__ = ["Caller", "Router"]
