"""The functions that compute columns: what they take, which version they are, and how they are called."""
