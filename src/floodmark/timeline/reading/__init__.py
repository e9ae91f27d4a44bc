"""Reading a timeline in order, by Arrow and by Spark."""
