"""What tasks do: apply the function to units, keep checkpoints, and share the work out."""
