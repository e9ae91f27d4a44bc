"""Whether everything that Floodmark needs is there and in order, and what to do where it is not."""
