"""Peers: the same work on this broker, on the original, on NATS JetStream and on RabbitMQ."""
