"""Keys: the rule that the tasks of a key follow in every run whose tasks have keys."""

from __future__ import annotations

# Claims of one key a second, and how many a pause saves up. The clients ask for about as many, so
# the rate binds often, above all after a fault.
PER_SECOND = 2
BURST = 2
