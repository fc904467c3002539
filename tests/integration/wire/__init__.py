"""The node-to-node link on real sockets."""
