"""Run `bench.peers.run` for `python -m bench.peers`."""

from __future__ import annotations

import sys

from bench.peers.run import main

sys.exit(main())
