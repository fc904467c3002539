"""Make `python -m bench` the same as `python -m bench.run`."""

from __future__ import annotations

import sys

from bench.run import main

sys.exit(main())
