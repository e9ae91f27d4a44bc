"""What every derived thing shares: the loop that brings it up to date, turns, and positions in its inputs."""
