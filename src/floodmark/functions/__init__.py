"""User functions of columns and steps: their declaration, version, calls and checks of their results."""
