"""Make `python -m bench.peers` the same as `python -m bench.peers.run`."""

from __future__ import annotations

import sys

from bench.peers.run import main

sys.exit(main())
