"""Virtual time: a node whose clock moves on request, stop by stop, as if the time had passed."""
