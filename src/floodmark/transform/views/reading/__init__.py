"""What a refresh reads of the sources: how far, which keys changed, and their rows."""
