"""What every place of backups promises, whatever it keeps them in."""
