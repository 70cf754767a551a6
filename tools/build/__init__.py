"""Starlark rules of the workspace and the programs that they run."""
