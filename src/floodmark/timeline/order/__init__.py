"""Where rows lie on the time axis: places, pieces, partitions, ranges and spans. Pure."""
