"""Make `python -m jepsen_lite` the command line."""

from __future__ import annotations

import sys

from jepsen_lite.cli import main

sys.exit(main())
