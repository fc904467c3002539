"""Sources: the flags that say where a node's configuration comes from."""

from __future__ import annotations

import argparse
from pathlib import Path

from codeq_cluster.config import Loaded, load
from codeq_cluster.errors import ConfigInvalid
from codeq_cluster.settings import environment

# The settings that are most often given by hand when a node is started; `--set` reaches the others.
_FLAGS = (
    ("--port", "port", "HTTP port"),
    ("--host", "host", "address the HTTP port listens on"),
    ("--data", "persistenceConfig.path", "data directory"),
    ("--log-level", "logLevel", "debug, info, warning or error"),
)


def add_sources(parser: argparse.ArgumentParser) -> None:
    """Add the flags that say where the configuration comes from."""
    parser.add_argument(
        "--config",
        type=Path,
        metavar="FILE",
        help="YAML or TOML; without it CODEQ_CONFIG_PATH, or the environment alone",
    )
    for flag, name, meaning in _FLAGS:
        parser.add_argument(flag, dest=f"set_{name}", metavar="VALUE", help=meaning)
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any key of the configuration file; may be repeated",
    )


def loaded(options: argparse.Namespace) -> Loaded:
    """Load the configuration that the flags of `add_sources` describe.

    Raises:
        ConfigInvalid: A key or a value is not allowed.
    """
    flags: dict[str, str] = {}
    for pair in options.set:
        name, equals, value = str(pair).partition("=")
        if not equals:
            raise ConfigInvalid(f"--set {name}: must be KEY=VALUE")
        flags[name] = value
    for _, name, _ in _FLAGS:
        value = getattr(options, f"set_{name}")
        if value is not None:
            flags[name] = value
    variables = environment()
    file = options.config
    if file is None and variables.get("CODEQ_CONFIG_PATH"):
        file = Path(variables["CODEQ_CONFIG_PATH"])
    return load(file=file, environment=variables, flags=flags)
