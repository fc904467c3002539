"""Claims that hold for every history, tested on random ones."""
