"""Configuration: typed sections, and how files and variables become one of them."""

from lemon_core.config.load import ConfigError, LoadedConfig, load_config, load_validated
from lemon_core.config.model import LemonConfig

__all__ = ["ConfigError", "LemonConfig", "LoadedConfig", "load_config", "load_validated"]
