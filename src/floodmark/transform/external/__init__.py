"""Tables that live in databases: what they are, and polling them."""
