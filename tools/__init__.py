"""Programs and rules that build, check and run the workspace."""
