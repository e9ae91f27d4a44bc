"""Pictures of a timeline: which pieces lie where on the time axis, on a terminal and as SVG."""
