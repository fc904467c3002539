"""Claims that hold for every history, tried on random ones."""
