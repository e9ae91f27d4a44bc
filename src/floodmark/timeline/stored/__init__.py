"""What a timeline is at rest: its own files, manifests and the root, swapped as a whole."""
