"""Configuration: one file, the environment and flags become one validated `NodeSettings`."""

from codeq_cluster.config.load import Loaded, Shown, load

__all__ = ["Loaded", "Shown", "load"]
