"""The promises of every store, whatever it keeps its bytes in."""
