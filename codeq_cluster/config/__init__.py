"""Configuration: one file, the environment and flags become one validated `NodeSettings`."""

from codeq_cluster.config.load import Loaded, load
from codeq_cluster.config.sources import without_settings
from codeq_cluster.config.values import Shown

__all__ = ["Loaded", "Shown", "load", "without_settings"]
