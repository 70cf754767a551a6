"""What an extension is made of; `docs/extensions.md` shows a whole one.

Extensions are code of the user's own, in a folder that the configuration names. Whoever writes one
needs these names and the tool types of lemon_agent.
"""

from coding_agent.extensions.api import HOOKS, Extension, ExtensionTool, HookName, Provider

__all__ = ["HOOKS", "Extension", "ExtensionTool", "HookName", "Provider"]
