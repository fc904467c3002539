"""The broker's rules: pure values and functions, no I/O, clock, randomness or logging."""
