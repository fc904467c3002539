"""The promises of every artifact provider, whatever its storage."""
