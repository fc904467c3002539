"""JSON bodies that come in and go out."""
