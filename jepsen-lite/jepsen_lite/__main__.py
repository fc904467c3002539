"""Run the command line for `python -m jepsen_lite`."""

from __future__ import annotations

import sys

from jepsen_lite.cli import main

sys.exit(main())
