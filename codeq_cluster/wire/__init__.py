"""The node-to-node link: one authenticated TCP port per node."""
