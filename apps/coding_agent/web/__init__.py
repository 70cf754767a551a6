"""What the web tools stand on: guarded requests, readable text, searching, a cache."""

from coding_agent.web.services import Web

__all__ = ["Web"]
