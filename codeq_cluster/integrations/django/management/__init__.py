"""Management: where Django looks for commands."""
