"""Which keys changed: inputs pinned, the step's shape, and the changelist."""
