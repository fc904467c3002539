"""codeq-cluster: a Raft-replicated task broker."""

__version__ = "0.1.0"
