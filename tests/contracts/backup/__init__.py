"""The promises of every place of backups, whatever its storage."""
