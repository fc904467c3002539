"""The pure core, without anything around it."""
