"""The parts of `tools/bazelw`. Standard library only: this runs before anything is installed."""
