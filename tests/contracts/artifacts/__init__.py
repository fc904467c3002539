"""What every provider of artifacts promises, whatever it keeps them in."""
