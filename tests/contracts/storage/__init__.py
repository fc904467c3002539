"""What every store promises, whatever it keeps its bytes in."""
