"""What nobody needs any more, in all of a lake: found, and removed once it is old enough."""
