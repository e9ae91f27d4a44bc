"""What is merged with what, and when: the planner's rules and the cost rule. Pure."""
