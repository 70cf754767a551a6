"""The execution runtime: slots, locks, runs and their events behind one executor."""

from lemon_gateway.runtime import Runtime

__all__ = ["Runtime"]
