"""codeq-cluster: a Raft-replicated task broker."""

__version__ = "0.2.0.dev0"
